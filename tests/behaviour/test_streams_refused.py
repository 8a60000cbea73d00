"""What is no stream, and who may not read one, is refused, and says what to write. Promise 18."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from llm_traffic_scheduler import ConfigError, SchedulerMisuse
from tests.behaviour.doors import assert_whole, start
from tests.behaviour.streams import Words, read
from tests.support import account, make_scheduler, noop, settle

pytestmark = pytest.mark.asyncio(loop_factories=["virtual", "eager", "debug"])


async def test_one_task_reads_at_a_time() -> None:
    scheduler = make_scheduler()
    stream = scheduler.stream("interactive", Words().generator)
    first = start(anext(stream))
    await settle()

    with pytest.raises(SchedulerMisuse, match="one task at a time"):
        await anext(stream)

    assert await first == 0
    assert await start(read(stream)) == [1, 2]


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda s: s.stream("batch", Words().generator, preemptible=True), SchedulerMisuse, "cannot be preempted"),
        (lambda s: s.stream("batch", Words().generator()), SchedulerMisuse, r"not stream\(kind, ask\(question\)\)"),
        (lambda s: s.stream("batch", noop()), SchedulerMisuse, "got a coroutine object"),
        (lambda s: s.stream("batch", 3), SchedulerMisuse, "got int"),
        (lambda s: s.stream("urgent", Words().generator), ConfigError, "kind must be"),
        (lambda s: s.stream(None, Words().generator), SchedulerMisuse, "no kind is in force"),
        (lambda s: s.stream("batch", Words().generator, idle_timeout=0), ConfigError, "idle_timeout must be above 0"),
        (lambda s: s.stream("batch", Words().generator, run_timeout=-1), ConfigError, "run_timeout must be"),
        (lambda s: s.stream("batch", Words().generator, weight=1), TypeError, "unknown option 'weight'"),
    ],
)
async def test_what_cannot_be_streamed_is_refused_at_once(make: Any, error: type[Exception], text: str) -> None:
    scheduler = make_scheduler()

    with pytest.raises(error, match=text):
        make(scheduler)

    assert account(scheduler, "batch").submitted == 0


@pytest.mark.parametrize("function", [noop, lambda: 3, lambda: [1]])
async def test_a_source_that_gives_no_stream_says_what_to_write(function: Any) -> None:
    scheduler = make_scheduler()

    with pytest.raises(SchedulerMisuse, match="no async iterator: write an async-generator function"):
        await read(scheduler.stream("interactive", function))

    await assert_whole(scheduler)


async def test_a_stop_that_is_no_end_does_not_pass_for_one() -> None:
    async def source() -> AsyncIterator[int]:
        raise StopAsyncIteration

    with pytest.raises(RuntimeError):
        await read(make_scheduler().stream("interactive", source))


@pytest.mark.parametrize("preemptible", [False, True])
async def test_submit_closes_a_live_stream_and_names_the_way(preemptible: bool) -> None:
    scheduler, words = make_scheduler(), Words()

    with pytest.raises(SchedulerMisuse, match=r"Words.coroutine returned _Response, a stream .*scheduler.stream\(kind"):
        await scheduler.submit("batch", words.coroutine, preemptible=preemptible)

    assert words.closed == 1
    assert account(scheduler, "batch").failed == 1
    await assert_whole(scheduler)
