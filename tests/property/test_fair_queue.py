"""Tenants' turns against the dullest possible twin: lists, from which everything is worked out at each look.

Keeps the core's part of promise 2 of SEMANTICS.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from llm_traffic_scheduler.core.fair_queue import FairQueue
from llm_traffic_scheduler.core.running_tenants import RunningTenants

TENANTS = ["a", "b", "c", "d", None]
WHICH = st.integers(0, 99)


@dataclass(eq=False)
class Item:
    tenant: str | None
    priority: float
    number: int

    def __repr__(self) -> str:
        return f"{self.tenant}{self.number}@{self.priority}"


class Dull:
    """Who waits and who has started, and three tables of what the paper's tags come to, swept after each event."""

    def __init__(self) -> None:
        self.waiting: list[Item] = []
        self.running: list[Item] = []
        self.aside: list[Item] = []
        self.paid: dict[Item, tuple[int, bool, int]] = {}
        self.rounds: dict[float, int] = {}
        self.served: dict[tuple[float, str | None], int] = {}
        self.claims: dict[tuple[float, str | None], tuple[int, bool, int]] = {}
        self.bound: int | None = None
        self.tags = 0

    def at_bound(self, tenant: str | None) -> bool:
        return self.bound is not None and sum(item.tenant == tenant for item in self.running) >= self.bound

    def fresh(self, item: Item) -> tuple[int, bool, int]:
        now = self.rounds.get(item.priority, 0)
        self.tags += 1
        return now + 1, self.served.get((item.priority, item.tenant), -1) == now, self.tags

    def heads(self) -> list[Item]:
        own = [[item for item in self.waiting if item.tenant == tenant] for tenant in TENANTS]
        firsts = [min(items, key=lambda item: (item.priority, item.number)) for items in own if items]
        return [item for item in firsts if not self.at_bound(item.tenant)]

    def tag(self, item: Item) -> tuple[int, bool, int]:
        return self.paid.get(item) or self.claims[item.priority, item.tenant]

    def next(self) -> Item | None:
        return min(self.heads(), key=lambda item: (item.priority, self.tag(item), item.number), default=None)

    def start(self, item: Item, tag: tuple[int, bool, int]) -> None:
        self.running.append(item)
        if item not in self.paid:
            self.paid[item] = tag
            self.rounds[item.priority] = self.served[item.priority, item.tenant] = tag[0]
            self.claims.pop((item.priority, item.tenant), None)

    def sweep(self) -> None:
        """Forget whoever has nothing; then the first of each tenant at each priority has its tag, or gets it."""
        present = {*self.waiting, *self.running, *self.aside}
        self.paid = {item: tag for item, tag in self.paid.items() if item in present}
        accounts = {(item.priority, item.tenant) for item in present}
        queued = {(item.priority, item.tenant) for item in self.waiting}
        self.rounds = {at: now for at, now in self.rounds.items() if any(at == priority for priority, _ in accounts)}
        self.served = {account: last for account, last in self.served.items() if account in accounts}
        self.claims = {account: tag for account, tag in self.claims.items() if account in queued}
        for item in self.waiting:
            if (item.priority, item.tenant) not in self.claims:
                self.claims[item.priority, item.tenant] = self.fresh(item)
        for item in self.heads():
            claim = self.claims[item.priority, item.tenant]
            if item not in self.paid and claim[0] < self.rounds.get(item.priority, 0):
                self.claims[item.priority, item.tenant] = *self.fresh(item)[:2], claim[2]


def step(name: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    return st.tuples(st.just(name), st.fixed_dictionaries(arguments))


COME = {"tenant": st.sampled_from(TENANTS), "priority": st.sampled_from([0, 0, 0, -1, 0.5])}
ARRIVE = step("arrive", **COME, times=st.integers(1, 5))
START = step("start_next", times=st.integers(1, 6))
REST = st.one_of(
    step("find_room", **COME),
    step("drop_next"),
    step("discard", which=WHICH, times=st.integers(1, 4)),
    step("come_back", which=WHICH, at_once=st.booleans()),
    step("step_aside", which=WHICH),
    step("end_aside", which=WHICH),
    step("set_bound", bound=st.sampled_from([None, None, 0, 1, 2, 3])),
)
END = step("end", which=WHICH, times=st.integers(1, 5))
STEPS = st.sampled_from([ARRIVE, ARRIVE, START, START, END, REST, REST]).flatmap(lambda it: it)


class TurnsAndLists(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tenants = RunningTenants()
        self.queue: FairQueue[Item] = FairQueue(self.tenants)
        self.dull = Dull()
        self.number = 0

    # One rule and not one for each step: swarm testing would leave out arrivals or starts in half of the runs.
    @rule(step=STEPS)
    def step(self, step: tuple[str, dict[str, Any]]) -> None:
        name, arguments = step
        getattr(self, name)(**arguments)
        self.dull.sweep()

    def arrive(self, tenant: str | None, priority: float, times: int) -> None:
        for _ in range(times):
            self.enter(self.new(tenant, priority))

    def find_room(self, tenant: str | None, priority: float) -> None:
        """A newcomer that need not wait."""
        if self.dull.next() is None and not self.dull.at_bound(tenant):
            item = self.new(tenant, priority)
            self.dull.start(item, self.dull.fresh(item))
            self.queue.started(item)

    def start_next(self, times: int) -> None:
        for _ in range(times):
            if (item := self.pop()) is not None:
                self.dull.start(item, self.dull.tag(item))
                self.queue.started(item)
                self.dull.sweep()
                self.queue.check()

    def drop_next(self) -> None:
        self.pop()

    def discard(self, which: int, times: int) -> None:
        for _ in range(min(times, len(self.dull.waiting))):
            self.queue.discard(self.dull.waiting.pop(which % len(self.dull.waiting)).number)
            self.dull.sweep()

    def end(self, which: int, times: int) -> None:
        for _ in range(min(times, len(self.dull.running))):
            self.queue.ended(self.dull.running.pop(which % len(self.dull.running)))
            self.dull.sweep()

    def come_back(self, which: int, at_once: bool) -> None:
        """From a checkpoint, or from where it stepped aside; into the queue or straight into a free slot."""
        if self.dull.aside:
            item = self.dull.aside.pop(which % len(self.dull.aside))
            if at_once and not self.dull.at_bound(item.tenant):
                self.dull.start(item, self.dull.paid[item])
                self.queue.started(item)
            else:
                self.enter(item)
        elif self.dull.running:
            item = self.dull.running.pop(which % len(self.dull.running))
            self.enter(item)
            self.queue.ended(item)  # its slot's end, which is not its own

    def step_aside(self, which: int) -> None:
        if self.dull.running:
            self.dull.aside.append(self.dull.running.pop(which % len(self.dull.running)))
            self.queue.set_aside(self.dull.aside[-1])

    def end_aside(self, which: int) -> None:
        if self.dull.aside:
            self.queue.ended(self.dull.aside.pop(which % len(self.dull.aside)))

    def set_bound(self, bound: int | None) -> None:
        self.tenants.max_running_per_tenant = self.dull.bound = bound

    def new(self, tenant: str | None, priority: float) -> Item:
        self.number += 1
        return Item(tenant, priority, self.number)

    def enter(self, item: Item) -> None:
        self.dull.waiting.append(item)
        self.dull.sweep()
        assert self.queue.push(item, item.priority, item.number) is False

    def pop(self) -> Item | None:
        item = self.dull.next()
        if item is None:
            assert not self.queue.ready
            return None
        assert self.queue.pop() is item
        self.dull.waiting.remove(item)
        unpaid = [other for other in (*self.dull.waiting, item) if other not in self.dull.paid]
        if item in unpaid:
            # First come, first served within a tenant, in its own words: the twin may share a mistake.
            same = [other for other in unpaid if (other.tenant, other.priority) == (item.tenant, item.priority)]
            assert item.number == min(other.number for other in same)
        return item

    @invariant()
    def both_say_the_same(self) -> None:
        queue, dull = self.queue, self.dull
        assert queue.peek() is dull.next()
        assert queue.ready == len(dull.heads())
        assert len(queue) == len(dull.waiting)
        assert {*queue} == {*queue.ordered()} == {*dull.waiting}
        assert [self.tenants.running(it) for it in TENANTS] == [
            sum(item.tenant == it for item in dull.running) for it in TENANTS
        ]
        queue.check()

    def teardown(self) -> None:
        """Those not at their bound leave in the order foretold, and nothing is left of anybody."""
        foretold = [item for item in self.queue.ordered() if not self.dull.at_bound(item.tenant)]
        for item in foretold:
            assert self.queue.pop() is item
            self.queue.started(item)
            self.queue.set_aside(item)  # or some tenant would come to its bound
            self.dull.aside.append(item)
        while self.dull.waiting and self.queue.size:
            self.queue.discard(next(iter(self.queue)).number)
        for item in (*self.dull.running, *self.dull.aside):
            self.queue.ended(item)
        self.queue.check()
        assert not self.queue._lines
        assert not self.queue._levels
        assert not self.queue._charged
        assert not self.tenants._counts


TestTurnsAndLists = TurnsAndLists.TestCase


@given(
    slots=st.integers(1, 5),
    steps=st.lists(st.tuples(st.sampled_from(["come", "leave", "end"]), st.integers(0, 9)), max_size=80),
)
def test_two_tenants_that_always_wait_get_the_same_whoever_comes_and_goes(
    slots: int, steps: list[tuple[str, int]]
) -> None:
    queue: FairQueue[Item] = FairQueue()
    items = [Item("ab"[number % 2], 0, number) for number in range(400)]
    for item in items:
        queue.push(item, 0, item.number)
    running: list[Item] = []
    visitors: list[Item] = []
    started = {"a": 0, "b": 0}
    for number, (what, which) in enumerate(steps, start=len(items)):
        if what == "come":
            visitors.append(Item(f"visitor {which}", 0, number))
            queue.push(visitors[-1], 0, number)
        elif what == "leave" and visitors:
            queue.discard(visitors.pop(which % len(visitors)).number)
        elif what == "end" and running:
            queue.ended(running.pop(which % len(running)))
        while len(running) < slots:
            running.append(item := queue.pop())
            queue.started(item)
            if item in visitors:
                visitors.remove(item)
            elif item.tenant is not None:
                started[item.tenant] += 1

        assert abs(started["a"] - started["b"]) <= 1


@given(slots=st.integers(1, 3), others=st.integers(1, 6), names=st.sampled_from(["kept", "new each time"]))
def test_whoever_waits_gets_a_share_although_others_leave_and_come_back_as_if_new(
    slots: int, others: int, names: str
) -> None:
    queue: FairQueue[Item] = FairQueue()
    for number in range(100):
        queue.push(Item("backlog", 0, number), 0, number)
    running: list[Item] = []
    starts: list[str | None] = []
    for number in range(100, 100 + others):
        queue.push(item := Item(f"caller {number}", 0, number), 0, number)
    for number in range(200, 260):
        while len(running) < slots:
            running.append(item := queue.pop())
            queue.started(item)
            starts.append(item.tenant)
        ended = running.pop(0)
        queue.ended(ended)
        running.append(item := queue.pop())  # the slot goes on before its caller can come back
        queue.started(item)
        starts.append(item.tenant)
        if ended.tenant != "backlog":
            tenant = ended.tenant if names == "kept" else f"caller {number}"
            queue.push(item := Item(tenant, 0, number), 0, number)

    turns = [at for at, tenant in enumerate(starts) if tenant == "backlog"]
    gaps = [later - earlier for earlier, later in pairwise(turns)]
    # Twice: as one left over from the round before, and as one that has come back before the next round began.
    assert max(gaps) <= 2 * others + 1
    share = len(starts) / (others + 1)
    assert len(turns) >= share - 2
    # With one slot the others want no less than theirs; with more, they may not be back in time.
    assert slots > 1 or len(turns) <= share + 2
