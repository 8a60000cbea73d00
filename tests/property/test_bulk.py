"""`map` and `as_completed` under any lengths, errors, cancels, limits and consumers.

One bound: submitted and not consumed. One model: `asyncio.gather` of the same items says what each becomes. And
nothing is left, wherever the consumer stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llm_traffic_scheduler import FixedPolicy, Outcome, TrafficScheduler
from llm_traffic_scheduler.testing import run_virtual

ERRORS = {"fails": ConnectionError, "cancels itself": asyncio.CancelledError}


@dataclass(frozen=True)
class Item:
    """One item: how long its call takes, and how it ends."""

    seconds: int
    ending: str
    source_takes: int


@dataclass(frozen=True)
class Plan:
    """One operation, and who consumes it."""

    items: list[Item]
    stream: bool
    source_fails: bool
    kind: Any
    slots: int
    bound: int | None
    buffer: int
    consumer_takes: int
    stops_after: int
    cancelled_at: int | None


PLANS = st.builds(
    Plan,
    items=st.lists(
        st.builds(
            Item, st.integers(0, 5), st.sampled_from(["returns", "returns", "returns", *ERRORS]), st.integers(0, 2)
        ),
        max_size=20,
    ),
    stream=st.booleans(),
    source_fails=st.booleans(),
    kind=st.sampled_from(["interactive", "batch"]),
    slots=st.integers(2, 5),
    bound=st.none() | st.integers(0, 3),
    buffer=st.integers(1, 9),
    consumer_takes=st.integers(0, 3),
    stops_after=st.integers(1, 25),
    cancelled_at=st.none() | st.integers(0, 20),
)


class Play:
    """Runs a plan and keeps what has happened."""

    def __init__(self, plan: Plan, way: str) -> None:
        bounds: Any = {f"max_queued_{plan.kind}": plan.bound}
        self.plan, self.way = plan, way
        self.scheduler = TrafficScheduler(max_concurrency=plan.slots, policy=FixedPolicy(100), **bounds)
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.seen: list[Any] = []
        self.error: BaseException | None = None
        self.pulled = self.most_open = self.most_queued = 0

    async def call(self, numbered: tuple[int, Item]) -> int:
        number, item = numbered
        self.begun.append(number)
        now = self.scheduler.snapshot()
        self.most_queued = max(self.most_queued, now.batch_queued, now.interactive_queued)
        try:
            await asyncio.sleep(item.seconds)
            if item.ending != "returns":
                raise ERRORS[item.ending](number)
            return number
        finally:
            self.ended.append(number)

    def pull(self, number: int) -> None:
        self.pulled += 1
        self.most_open = max(self.most_open, self.pulled - len(self.seen))

    def source(self) -> Iterator[tuple[int, Item]]:
        for number, item in enumerate(self.plan.items):
            self.pull(number)
            yield number, item
        if self.plan.source_fails:
            raise LookupError

    async def stream(self) -> AsyncIterator[tuple[int, Item]]:
        for number, item in self.source():
            await asyncio.sleep(item.source_takes)
            yield number, item

    async def consume(self) -> None:
        plan = self.plan
        items = self.stream() if plan.stream else self.source()
        operation = getattr(self.scheduler, self.way)
        async with operation(plan.kind, self.call, items, buffer=plan.buffer) as results:
            async for each in results:
                self.seen.append(each)
                await asyncio.sleep(plan.consumer_takes)
                if len(self.seen) == plan.stops_after:
                    break

    async def run(self) -> None:
        consumer = asyncio.create_task(self.consume())
        if self.plan.cancelled_at is not None:
            asyncio.get_running_loop().call_later(self.plan.cancelled_at, consumer.cancel)
        await asyncio.wait([consumer])
        self.error = asyncio.CancelledError() if consumer.cancelled() else consumer.exception()
        self.check(asyncio.all_tasks() - {asyncio.current_task()})

    def check(self, left: set[Any]) -> None:
        """What holds of every play, however it ended."""
        now, totals = self.scheduler.snapshot(), self.scheduler.snapshot().totals[self.plan.kind]
        assert not left
        assert (now.running, now.batch_queued, now.interactive_queued) == (0, 0, 0)
        assert sorted(self.begun) == sorted(self.ended) == sorted(set(self.begun))
        # The pull that takes the place of one that is being returned comes before the consumer has it.
        assert self.most_open <= self.plan.buffer + 1
        assert self.plan.bound is None or self.most_queued <= max(1, self.plan.bound)
        assert totals.rejected == 0
        assert totals.submitted == totals.completed + totals.failed + totals.cancelled
        self.scheduler.check()

    @property
    def to_the_end(self) -> bool:
        return self.plan.cancelled_at is None and len(self.seen) < self.plan.stops_after


@given(PLANS)
def test_map_is_gather_with_a_bound(plan: Plan) -> None:
    play = Play(plan, "map")

    run_virtual(play.run())

    endings = [item.ending for item in plan.items]
    first = next((number for number, ending in enumerate(endings) if ending != "returns"), len(endings))
    assert play.seen == list(range(len(play.seen)))
    assert len(play.seen) <= first
    if play.to_the_end:
        expected = ERRORS[endings[first]] if first < len(endings) else LookupError if plan.source_fails else type(None)
        assert type(play.error) is expected
        assert len(play.seen) == first


@given(PLANS)
def test_as_completed_gives_every_item_once_with_what_became_of_it(plan: Plan) -> None:
    play = Play(plan, "as_completed")

    run_virtual(play.run())

    seen: list[Outcome[tuple[int, Item], int]] = play.seen
    assert len({outcome.index for outcome in seen}) == len(seen)
    for outcome in seen:
        number, item = outcome.item
        expected = (number, type(None)) if item.ending == "returns" else (None, ERRORS[item.ending])
        assert outcome.index == number
        assert (outcome.result, type(outcome.error)) == expected
    if play.to_the_end:
        assert type(play.error) is (LookupError if plan.source_fails else type(None))
        assert len(seen) == len(plan.items)
