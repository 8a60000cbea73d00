"""What goes wrong around an SDK's call, streamed or not: the slot is back at once, error and account are right."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from llm_traffic_scheduler import Ended, traffic
from tests.sdks import TEXT, passes
from tests.support import hold

pytestmark = pytest.mark.asyncio(loop_factories=["real"])


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is given back at once is given back without the collector's help."""
    gc.disable()
    yield
    gc.enable()


async def whole(told: Any, **more: Any) -> Any:
    return await told.sdk.ask(**more)


async def streamed(told: Any, **more: Any) -> Any:
    return [chunk async for chunk in await told.sdk.ask(stream=True, **more)]


Ask = Callable[..., Awaitable[Any]]
each_way = pytest.mark.parametrize("ask", [whole, streamed])


@pytest.mark.usefixtures("no_collector")
async def test_an_answer_cut_off_by_its_server_is_a_failed_attempt_and_the_next_has_a_slot_of_its_own(
    story: Any,
) -> None:
    async with story(max_retries=1) as told:
        told.server.engine.faulty = ["reset"]
        answer = await told.sdk.ask()
        assert told.sdk.text(answer) == TEXT
        assert told.outcomes() == ["failed", "completed"]

        told.server.engine.faulty = ["reset", "reset"]
        with pytest.raises(told.sdk.errors.APIConnectionError):
            await told.sdk.ask()

        assert told.running == 0
        assert told.outcomes()[2:] == ["failed", "failed"]


@pytest.mark.usefixtures("no_collector")
async def test_a_timeout_of_the_sdks_own_is_tried_again_in_another_slot(story: Any) -> None:
    async with story(max_retries=1, timeout=0.2) as told:
        told.server.engine.faulty = ["hang", "hang"]
        with pytest.raises(told.sdk.errors.APITimeoutError):
            await told.sdk.ask()

        assert told.running == 0
        assert told.outcomes() == ["failed", "failed"]
        assert told.totals.submitted == 2


@pytest.mark.usefixtures("no_collector")
async def test_a_stream_that_stands_still_ends_with_the_sdks_timeout_and_is_not_tried_again(story: Any) -> None:
    async with story(max_retries=5, timeout=0.3) as told:
        told.server.engine.faulty = ["slow_tail"]
        with pytest.raises(told.sdk.silence):
            await streamed(told)

        assert told.running == 0
        assert told.outcomes() == ["failed"]
        await passes(lambda: told.server.engine.running == 0)


@pytest.mark.usefixtures("no_collector")
@each_way
async def test_an_error_status_is_a_failure_and_the_sdks_own_error(story: Any, ask: Ask) -> None:
    async with story(max_retries=0) as told:
        told.server.engine.faulty = ["error", "throttle"]
        with pytest.raises(told.sdk.errors.InternalServerError):
            await ask(told)
        assert told.running == 0
        with pytest.raises(told.sdk.errors.RateLimitError):
            await ask(told)

        assert told.running == 0
        assert told.outcomes() == ["failed", "failed"]


@each_way
async def test_a_back_off_sleep_holds_no_slot_and_each_attempt_waits_for_its_turn(story: Any, ask: Ask) -> None:
    async with story(max_retries=1) as told:
        told.server.engine.faulty, told.server.engine.retry_after = ["throttle"], "0.1"
        asking = asyncio.ensure_future(ask(told))
        await passes(lambda: told.outcomes() == ["failed"])
        held = [hold(told.scheduler), hold(told.scheduler)]  # the back-off has left both slots free
        await passes(lambda: told.scheduler.snapshot().interactive_queued == 1)
        assert all(each.started for each in held)

        for each in held:
            each.release()
        await asking
        assert sorted(told.outcomes()) == ["completed"] * 3 + ["failed"]


@pytest.mark.usefixtures("no_collector")
@each_way
@pytest.mark.parametrize("why", ["QueueFull", "QueueTimeout", "SchedulerClosed"])
async def test_a_refusal_is_one_attempt_and_the_sdks_own_error_whatever_the_reason(
    story: Any, ask: Ask, why: str
) -> None:
    async with story(max_retries=5) as told:
        held = [hold(told.scheduler), hold(told.scheduler)]
        await passes(lambda: told.running == 2)
        if why == "QueueFull":
            told.scheduler.configure(max_queued_interactive=0)
        elif why == "SchedulerClosed":
            closing = asyncio.ensure_future(told.scheduler.close())
            await asyncio.sleep(0)
        seen, before = told.server.engine.seen, told.totals
        with traffic("interactive", queue_timeout=0.01), pytest.raises(told.sdk.errors.InternalServerError) as refused:
            await ask(told)

        assert refused.value.status_code == 503
        assert why in str(refused.value.body)
        assert told.server.engine.seen == seen
        assert told.totals.rejected - before.rejected == (why != "SchedulerClosed")
        assert told.totals.submitted - before.submitted == (why != "SchedulerClosed")
        for each in held:
            each.release()
        await (closing if why == "SchedulerClosed" else told.scheduler.drain())


async def test_a_refusal_that_knows_when_to_come_back_says_so_to_the_sdk(story: Any) -> None:
    async with story(max_retries=5) as told:
        for _ in range(4):  # so that the scheduler knows how quickly the queue drains
            await told.sdk.ask()
        told.scheduler.configure(max_queued_interactive=0)
        held = [hold(told.scheduler), hold(told.scheduler)]
        await passes(lambda: told.running == 2)
        with pytest.raises(told.sdk.errors.InternalServerError) as refused:
            await told.sdk.ask()

        assert int(refused.value.response.headers["retry-after"]) >= 1
        assert "QueueFull" in str(refused.value.body)
        for each in held:
            each.release()
        await told.scheduler.drain()


@pytest.mark.parametrize("fault", [None, "no_usage"])
async def test_tokens_are_counted_where_usage_is_missing_too(story: Any, fault: str | None) -> None:
    async with story() as told:
        told.server.engine.faulty = [fault or "none"]
        await streamed(told)
        told.server.engine.faulty = [fault or "none"]
        answer = await whole(told)

        assert told.sdk.text(answer) == TEXT
        assert told.outcomes() == ["completed", "completed"]
        stream, document = told.law.of(Ended)
        assert (stream.tokens, document.tokens) == (8, 0)
        assert stream.pace > 0


@pytest.mark.usefixtures("no_collector")
async def test_a_stream_that_is_never_read_is_closed_and_says_so_to_whoever_reads_it_later(story: Any) -> None:
    async with story(idle_timeout=0.1) as told:
        told.server.engine.faulty = ["slow_tail"]
        stream = await told.sdk.ask(stream=True)
        await passes(lambda: told.running == 0)

        assert told.outcomes() == ["cancelled"]
        await passes(lambda: told.server.engine.running == 0)
        with pytest.raises(told.sdk.lost) as lost:
            _ = [chunk async for chunk in stream]
        assert "nobody had read it for idle_timeout seconds" in f"{lost.value} {lost.value.__cause__}"


async def test_a_stream_dropped_after_its_first_chunk_gives_its_slot_back_when_it_is_collected(story: Any) -> None:
    async with story() as told:
        told.server.engine.faulty = ["slow_tail"]
        holder = [await told.sdk.ask(stream=True)]
        async for _ in holder[0]:
            break
        assert told.running == 1
        with warnings.catch_warnings():
            # The SDK's generator closes the response as it is collected itself, or the response is found, which warns.
            warnings.simplefilter("ignore")
            holder.clear()
            await passes(lambda: gc.collect() >= 0 and told.running == 0)

        assert told.outcomes() == ["cancelled"]
        await passes(lambda: told.server.engine.running == 0)


@pytest.mark.usefixtures("no_collector")
async def test_a_stream_that_is_read_slowly_is_whole_and_its_call_no_slower_than_its_server(story: Any) -> None:
    async with story() as told:
        stream = await told.sdk.ask(stream=True)
        read, loop = [], asyncio.get_running_loop()
        async for chunk in stream:
            read.append(chunk)
            if len(read) == 1:
                began = loop.time()
                await passes(lambda: told.server.engine.running == 0)
                thought = loop.time() - began
                assert told.running == 1  # it has not read it all

        assert len(read) >= 8
        assert (told.running, told.outcomes()) == (0, ["completed"])
        [(arrived, _), *_, (ended, end)] = told.law.told
        assert end.latency <= ended - arrived - thought


@pytest.mark.usefixtures("no_collector")
async def test_a_stream_closed_from_another_task_gives_its_slot_back_while_its_reader_waits(story: Any) -> None:
    async with story() as told:
        told.server.engine.faulty = ["slow_tail"]
        stream, got = await told.sdk.ask(stream=True), []

        async def read() -> None:
            async for chunk in stream:
                got.append(chunk)  # noqa: PERF401  # seen while it goes on

        reader = asyncio.ensure_future(read())
        await passes(lambda: told.law.names[1:2] == ["FirstToken"])
        await asyncio.ensure_future(stream.close())

        assert told.running == 0
        assert told.outcomes() == ["cancelled"]
        await passes(lambda: told.server.engine.running == 0)
        reader.cancel()
        await asyncio.wait({reader})
