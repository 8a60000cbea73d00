"""What becomes of streams whose event loop ends before they do. Promises 18 and 25."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import pytest

from llm_traffic_scheduler import SchedulerMisuse
from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.behaviour.doors import assert_whole
from tests.behaviour.streams import Words, read
from tests.support import account, cancel_all_soon, make_scheduler, noop, settle

QUICK = 0.001


def test_the_end_of_the_loop_closes_a_stream_that_was_half_read() -> None:
    scheduler, words, kept = make_scheduler(), Words(), list[Any]()
    complaints = list[Any]()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        kept.append(scheduler.stream("interactive", words.generator))
        await anext(kept[0])

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())

    assert (words.opened, words.closed) == (1, 1)
    assert complaints == []
    assert scheduler.snapshot().running == 0
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(read(scheduler.stream("interactive", words.generator))) == [0, 1, 2]
    assert account(scheduler, "interactive").cancelled == 1


def test_a_stream_that_is_dropped_in_the_loops_last_pass_does_not_keep_it_from_ending() -> None:
    scheduler, words = make_scheduler(), Words()

    async def main() -> None:
        stream = scheduler.stream("interactive", words.generator)
        await anext(stream)

    with pytest.warns(ResourceWarning, match="dropped"), asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())

    assert (words.opened, words.closed) == (1, 1)
    assert scheduler.snapshot().running == 0


async def test_whoever_cancels_all_tasks_does_not_keep_a_dropped_stream_from_being_closed() -> None:
    scheduler, words = make_scheduler(), Words()
    stream = scheduler.stream("interactive", words.generator)
    await anext(stream)
    with pytest.warns(ResourceWarning, match="dropped"):
        del stream
    cancel_all_soon()
    await settle()

    assert words.closed == 1
    await assert_whole(scheduler)


async def test_a_task_factory_that_knows_no_contexts_does_not_keep_a_stream_from_being_closed() -> None:
    scheduler, words, loop = make_scheduler(), Words(), asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, work: asyncio.Task(work, loop=loop))
    stream = scheduler.stream("interactive", words.generator, idle_timeout=5)
    await anext(stream)
    await asyncio.sleep(6)

    assert words.closed == 1
    await assert_whole(scheduler)


def test_the_end_of_the_loop_closes_a_generator_in_the_context_it_began_in() -> None:
    scheduler, kept, complaints = make_scheduler(), list[Any](), list[Any]()
    variable: ContextVar[str] = ContextVar("variable", default="nobody")

    async def source() -> AsyncIterator[int]:
        token = variable.set("source")
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            variable.reset(token)
            kept.append(variable.get())

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        kept.append(scheduler.stream("interactive", source))
        await anext(kept[0])

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())

    assert kept[1:] == ["nobody"]
    assert complaints == []


def test_a_stream_of_a_loop_that_has_gone_is_refused_and_loses_nothing_on_the_next() -> None:
    scheduler, words = make_scheduler(), Words(each=QUICK)
    first = asyncio.new_event_loop()
    stream = scheduler.stream("interactive", words.generator)
    first.run_until_complete(stream.__anext__())
    first.close()

    async def main() -> None:
        with pytest.raises(SchedulerMisuse, match="on one event loop"):
            await anext(stream)
        await stream.aclose()
        await scheduler.submit("interactive", noop)
        await assert_whole(scheduler)

    asyncio.run(main())
