"""A slot is held for as long as a stream is read. Promise 18; how streams end is in test_streams_ending.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from llm_traffic_scheduler import (
    CallFinished,
    QueueFull,
    QueueTimeout,
    RunTimeout,
    SchedulerClosed,
    SchedulerMisuse,
    StreamClosed,
    current_slot,
    kind_in_force,
    released,
    traffic,
)
from tests.behaviour.doors import assert_whole, start
from tests.behaviour.streams import Words, each_form, read
from tests.behaviour.test_stream_times import about, plain, signals_of
from tests.support import Recorder, account, armed_timers, hold, make_scheduler, noop, settle

pytestmark = pytest.mark.asyncio(loop_factories=["virtual", "eager", "debug"])


@each_form
async def test_a_stream_yields_what_its_source_does_in_one_slot_and_gives_that_back(form: str) -> None:
    scheduler, words = make_scheduler(), Words()
    stream = scheduler.stream("interactive", getattr(words, form), label="chat")

    running = [[(call.state, call.label) for call in scheduler.calls()] async for _ in stream]

    assert running == [[("running", "chat")]] * 3
    assert (words.sent, words.opened, words.closed) == (3, 1, 1)
    assert account(scheduler, "interactive").completed == 1
    assert armed_timers() == []
    await assert_whole(scheduler)


async def test_arguments_are_passed_on_and_the_source_is_called_for_the_first_item() -> None:
    scheduler, called = make_scheduler(), []

    async def source(first: int, second: int) -> AsyncIterator[int]:
        called.append(True)
        yield first + second

    stream = scheduler.stream("interactive", source, 1, 2)
    await stream.start()
    assert called == []

    assert await read(stream) == [3]


async def test_the_slot_is_taken_at_start_or_the_first_item_and_not_before() -> None:
    scheduler, words = make_scheduler(), Words()
    first, second = (scheduler.stream("interactive", words.generator) for _ in range(2))
    assert scheduler.snapshot().running == 0

    await first.start()
    await first.start()
    assert scheduler.snapshot().running == 1
    await anext(second)
    assert scheduler.snapshot().running == 2

    assert await read(first) == [0, 1, 2]
    assert await read(second) == [1, 2]
    await assert_whole(scheduler)


async def test_a_stream_that_waits_for_its_slot_is_queued_and_gets_it_in_its_turn() -> None:
    scheduler, words = make_scheduler(), Words()
    held = [hold(scheduler) for _ in range(2)]
    await settle()
    reading = start(read(scheduler.stream("interactive", words.generator)))
    await settle()

    assert scheduler.snapshot().interactive_queued == 1
    held[0].release()
    assert await reading == [0, 1, 2]
    held[1].release()
    await assert_whole(scheduler)


async def test_a_refused_stream_never_calls_its_source_and_may_be_tried_again() -> None:
    scheduler, words = make_scheduler(max_queued_interactive=0), Words()
    held = [hold(scheduler) for _ in range(2)]
    await settle()
    stream = scheduler.stream("interactive", words.generator)

    with pytest.raises(QueueFull):
        await stream.start()
    with pytest.raises(QueueFull):
        await anext(stream)
    scheduler.configure(max_queued_interactive=None)
    with pytest.raises(QueueTimeout):
        await read(scheduler.stream("interactive", words.generator, queue_timeout=1))
    assert words.opened == 0
    for call in held:
        call.release()

    assert await read(stream) == [0, 1, 2]
    await scheduler.close()
    with pytest.raises(SchedulerClosed):
        await scheduler.stream("interactive", words.generator).start()


async def test_kind_options_and_tenant_are_those_of_the_creation() -> None:
    scheduler, seen = make_scheduler(), []

    def see() -> None:
        slot = current_slot()
        assert slot is not None
        seen.append((kind_in_force(), slot.kind, slot.tenant))

    words = Words(1)
    words.seen = see

    with traffic("batch", tenant="t"):
        made_inside, contagious = (
            scheduler.stream(None, words.generator),
            scheduler.stream("interactive", words.generator),
        )
    made_outside = scheduler.stream("interactive", words.generator)
    await read(made_inside)
    await read(contagious)
    with traffic("batch", tenant="t"):
        await read(made_outside)
    await scheduler.submit("interactive", read, scheduler.stream("interactive", words.generator), tenant="t")

    assert seen == [("batch", "batch", "t")] * 2 + [("interactive", "interactive", None)] * 2


async def test_a_stream_made_in_a_batch_call_is_batch_wherever_it_is_read() -> None:
    scheduler, words = make_scheduler(), Words(1)

    async def make() -> list[Any]:
        return [scheduler.stream("interactive", words.generator)]

    [stream] = await scheduler.submit("batch", make)
    await read(stream)

    assert account(scheduler, "batch").completed == 2
    assert account(scheduler, "interactive").submitted == 0


@each_form
async def test_the_source_runs_in_the_slot_and_the_readers_loop_does_not(form: str) -> None:
    scheduler, words, slots = make_scheduler(), Words(), []
    words.seen = lambda: slots.append(current_slot())
    stream = scheduler.stream("interactive", getattr(words, form), label="mine")

    async for _ in stream:
        assert current_slot() is None
        assert kind_in_force() is None
        await scheduler.submit("interactive", noop)

    assert [slot is not None and slot.label for slot in slots] == ["mine"] * 3
    assert account(scheduler, "interactive").completed == 4


async def test_calls_that_the_source_makes_run_in_its_slot() -> None:
    scheduler = make_scheduler()
    held = hold(scheduler)
    await settle()

    async def source() -> AsyncIterator[str]:
        for _ in range(3):
            await scheduler.submit("interactive", noop)
            yield await asyncio.create_task(scheduler.submit("interactive", asyncio.sleep, 1, "word"))

    assert await read(scheduler.stream("interactive", source)) == ["word"] * 3
    held.release()
    await held.task
    assert account(scheduler, "interactive").completed == 2


async def test_a_stream_in_a_slot_of_its_scheduler_uses_that_one_and_leaves_it_to_the_loop_between_items() -> None:
    scheduler, words = make_scheduler(), Words()

    async def parent() -> list[int]:
        found = []
        async for number in scheduler.stream("interactive", words.generator):
            await scheduler.submit("interactive", noop)
            found.append(number)
        return found

    parents = [start(scheduler.submit("interactive", parent)) for _ in range(2)]

    assert await asyncio.gather(*parents) == [[0, 1, 2]] * 2
    assert account(scheduler, "interactive").completed == 2
    await assert_whole(scheduler)


async def test_streams_in_child_tasks_of_a_call_take_slots_of_their_own_or_use_its_one() -> None:
    scheduler, words = make_scheduler(), Words()

    async def parent() -> list[list[int]]:
        readers = [start(read(scheduler.stream("batch", words.generator))) for _ in range(3)]
        return list(await asyncio.gather(*readers))

    both = [start(scheduler.submit("interactive", parent)) for _ in range(2)]

    assert await asyncio.gather(*both) == [[[0, 1, 2]] * 3] * 2
    await assert_whole(scheduler)


@each_form
async def test_the_run_timeout_counts_only_while_an_item_is_awaited(form: str) -> None:
    scheduler, words = make_scheduler(), Words(5)
    stream = scheduler.stream("interactive", getattr(words, form), run_timeout=2.5)

    for number in range(2):
        assert await anext(stream) == number
        await asyncio.sleep(10)
        assert scheduler.snapshot().overdue == 0
    with pytest.raises(RunTimeout):
        await anext(stream)

    assert asyncio.get_running_loop().time() == pytest.approx(22.5)
    assert words.closed == 1
    assert account(scheduler, "interactive").timed_out == 1
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await assert_whole(scheduler)


async def test_a_stream_that_was_started_and_not_read_yet_is_not_overdue() -> None:
    scheduler, words = make_scheduler(), Words(5)
    stream = scheduler.stream("interactive", words.generator, run_timeout=2.5)

    await stream.start()
    await asyncio.sleep(10)

    assert [call.state for call in scheduler.calls()] == ["running"]
    assert [await anext(stream) for _ in range(2)] == [0, 1]
    with pytest.raises(RunTimeout):
        await anext(stream)
    await assert_whole(scheduler)


async def test_time_in_a_released_block_of_the_source_counts_in_no_timeout() -> None:
    scheduler = make_scheduler()

    async def source() -> AsyncIterator[int]:
        for number in range(3):
            async with released():
                await asyncio.sleep(10)
            await asyncio.sleep(1)
            yield number

    assert await read(scheduler.stream("interactive", source, run_timeout=3.5)) == [0, 1, 2]
    with pytest.raises(RunTimeout):
        await read(scheduler.stream("interactive", source, run_timeout=2.5))
    await assert_whole(scheduler)


async def test_a_slot_given_up_between_two_items_is_waited_for_by_the_next() -> None:
    scheduler = make_scheduler()

    async def source() -> AsyncIterator[int]:
        async with released():
            yield 0
        yield 1

    stream = scheduler.stream("interactive", source, run_timeout=5)
    assert await anext(stream) == 0
    assert scheduler.snapshot().running == 0
    await asyncio.sleep(1)
    assert await anext(stream) == 1
    assert scheduler.snapshot().running == 1
    await stream.aclose()
    await assert_whole(scheduler)


async def test_the_first_item_is_the_first_token_and_items_are_no_tokens() -> None:
    scheduler = plain()
    await read(scheduler.stream("interactive", Words(3, 2.0).generator))

    assert signals_of(scheduler).ttft_p95 == about(2.0)
    assert signals_of(scheduler).pace is None


async def test_a_source_that_counts_its_tokens_has_a_pace_without_the_readers_time() -> None:
    scheduler, words = plain(), Words(11, 0.1)
    recorder = Recorder(scheduler)

    def count() -> None:
        slot = current_slot()
        assert slot is not None
        slot.tokens(1)

    words.seen = count
    async for _ in scheduler.stream("interactive", words.generator):
        await asyncio.sleep(5)

    assert signals_of(scheduler).pace == about(0.1)
    assert signals_of(scheduler).p50 == about(1.1)
    [finished] = recorder.of(CallFinished)
    assert finished.tokens == 11
    assert finished.first_token == pytest.approx(0.1)
    assert finished.waited == pytest.approx(0.0)
    assert finished.ran == pytest.approx(56.1)


async def test_a_slow_reader_is_no_slow_backend() -> None:
    scheduler = make_scheduler(interactive_p95_threshold=1.0)
    stream = scheduler.stream("interactive", Words(2, 0.1).generator, idle_timeout=None)
    await anext(stream)
    await asyncio.sleep(3600)

    assert scheduler.snapshot().pressure < 1
    assert scheduler.snapshot().oldest_interactive_running == pytest.approx(3600.1)
    assert scheduler.calls()[0].age == pytest.approx(3600.1)
    await stream.aclose()


async def test_a_slow_backend_is_seen_while_an_item_is_awaited() -> None:
    scheduler = make_scheduler(interactive_p95_threshold=1.0)
    reading = start(read(scheduler.stream("interactive", Words(2, 5.0).generator)))
    await asyncio.sleep(4)

    assert scheduler.snapshot().pressure >= 1
    await reading


async def test_nothing_of_a_stream_is_asked_of_its_reader_twice() -> None:
    scheduler = make_scheduler()
    stream = scheduler.stream("interactive", Words().generator)
    await read(stream)

    assert await read(stream) == []
    await stream.aclose()
    assert account(scheduler, "interactive").submitted == 1


async def test_wrapped_generator_functions_are_streams() -> None:
    scheduler = make_scheduler()

    class Client:
        @scheduler.wrap("interactive", label="wrapped")
        async def tokens(self, text: str, *, times: int = 1) -> AsyncIterator[str]:
            """Says it."""
            for _ in range(times):
                yield f"{text} {scheduler.calls()[0].label}"

    assert await read(Client().tokens("hi")) == ["hi wrapped"]
    assert await read(Client().tokens("hi", times=2)) == ["hi wrapped"] * 2
    assert Client.tokens.__doc__ == "Says it."
    assert account(scheduler, "interactive").completed == 2
    with pytest.raises(SchedulerMisuse, match="cannot be preempted"):
        scheduler.wrap("batch", preemptible=True)(Words().generator)


async def test_a_stream_that_was_refused_or_not_started_needs_no_closing() -> None:
    scheduler = make_scheduler()
    async with scheduler.stream("interactive", Words().generator) as stream:
        pass

    with pytest.raises(StreamClosed):
        await stream.start()
    assert account(scheduler, "interactive").submitted == 0


async def test_age_and_wait_include_the_readers_time() -> None:
    scheduler = make_scheduler()
    held = [hold(scheduler) for _ in range(2)]
    await settle()
    stream = scheduler.stream("interactive", Words().generator)
    reading = start(stream.start())
    await asyncio.sleep(2)
    held[0].release()
    await reading
    for _ in range(2):
        await asyncio.sleep(10)
        await anext(stream)

    [streamed] = [call for call in scheduler.calls() if call.age < 30 and call.waited > 0]
    assert streamed.age == pytest.approx(24)
    assert streamed.waited == pytest.approx(2)
    await stream.aclose()
    held[1].release()


async def test_batch_that_waits_for_a_slow_stream_starts_when_its_item_is_there() -> None:
    scheduler = make_scheduler(max_concurrency=4, interactive_p95_threshold=1.0)
    batch = [hold(scheduler, "batch")]
    stream = scheduler.stream("interactive", Words(3, each=5.0).generator)
    first = start(anext(stream))
    await asyncio.sleep(4)
    batch.append(hold(scheduler, "batch"))
    await settle()
    assert [call.started for call in batch] == [True, False]

    await first
    await settle()

    assert [call.started for call in batch] == [True, True]
    await stream.aclose()
    for call in batch:
        call.release()
