"""Who is in the soak: clients of both kinds, their calls and what those do, and everything that must hold for them.

A new way for a call to behave is one more function under `@way`; a new way to ask for a slot one more entry of DOORS.
Nothing here raises on a broken promise: it is written down in `faults`, and the soak goes on.
"""

from __future__ import annotations

import asyncio
import math
import random
import traceback
from array import array
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from llm_traffic_scheduler import FixedPolicy, Kind, LimitPolicy, TrafficScheduler, current_slot
from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.behaviour.doors import Door, through_slot, through_submit
from tests.ledger import COUNTED_AS
from tests.support import armed_timers

__all__ = ["DOORS", "KINDS", "WAYS", "Boom", "Crowd", "Ticket", "way"]

KINDS: Final[tuple[Kind, Kind]] = ("interactive", "batch")
CLIENTS: Final[Mapping[str, int]] = {"interactive": 32, "batch": 40}
DOORS: Final[Mapping[Door, int]] = {through_submit: 3, through_slot: 1}
FAULTS_KEPT: Final = 20
ROUNDING: Final = 1e-9


class Boom(Exception):
    """What a call raises."""


@dataclass(eq=False, slots=True)
class Ticket:
    """One call.

    Attributes:
        cancels: how often its task was cancelled from outside.
        called: its function was called.
        swallowed: its function has heard a cancel and not passed it on.
    """

    kind: Kind
    work: Work
    options: dict[str, Any]
    arrived: float
    task: asyncio.Task[None] = field(init=False)
    began: float = math.inf
    cancels: int = 0
    called: bool = False
    swallowed: bool = False

    @property
    def queue_deadline(self) -> float:
        """When it is refused if it still waits, as far as it says itself; infinity if never."""
        timeout: float = self.options.get("queue_timeout", math.inf)
        return math.inf if self.called else self.arrived + timeout

    @property
    def run_deadline(self) -> float:
        """When it is told to stop, as far as it says itself; infinity if never."""
        timeout: float = self.options.get("run_timeout", math.inf)
        return self.began + timeout

    def cancel(self) -> None:
        """Cancel its caller, unless that has ended."""
        if self.task.cancel():
            self.cancels += 1


Work: TypeAlias = Callable[["Crowd", Ticket], Awaitable[None]]
WAYS: Final[dict[Work, int]] = {}


def way(weight: int) -> Callable[[Work], Work]:
    """What a call may do while it has its slot; `weight` says how often."""

    def register(work: Work) -> Work:
        WAYS[work] = weight
        return work

    return register


class Crowd:
    """Clients that submit one call after another, and a ledger of what became of the calls.

    `pace` is what a call takes on average, in seconds; every other time is a multiple of it. `thinking` is how long
    clients of a kind wait between two calls, in paces.
    """

    def __init__(self, pace: float, chance: random.Random) -> None:
        self.loop = asyncio.get_running_loop()
        self.pace, self.chance = pace, chance
        self.scheduler = TrafficScheduler(max_concurrency=16, window=20 * pace, batch_starvation_timeout=10 * pace)
        self.thinking: dict[str, float] = {"interactive": 1.0, "batch": 0.1}
        self.policy: LimitPolicy | None = None
        self.over = False
        self.live: dict[Ticket, None] = {}
        self.submitted, self.settled, self.called = Counter[str](), Counter[str](), Counter[str]()
        self.outcomes = {kind: Counter[str]() for kind in KINDS}
        self.cancelled_uncalled, self.cancels, self.done = Counter[str](), Counter[str](), Counter[str]()
        self.waits = array("d")  # of interactive calls that got a slot
        self.faults: list[str] = []
        self.fault_count = 0
        self._inside: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._bounds = self._read_bounds()
        self._bounds_before: deque[tuple[int, int]] = deque()
        self._doors, self._ways = list(DOORS), list(WAYS)
        self.loop.set_exception_handler(lambda _, context: self.blame("asyncio complains", _complaint(context)))

    # What is wrong

    def blame(self, what: str, *facts: object) -> None:
        """Something is wrong."""
        self.fault_count += 1
        if len(self.faults) < FAULTS_KEPT:
            self.faults.append(f"at {self.loop.time():.6f}, {what}: {', '.join(map(str, facts))}")

    def expect(self, holds: bool, what: str, *facts: object) -> None:
        """Blame if it does not hold."""
        if not holds:
            self.blame(what, *facts)

    # Clients and their calls

    def clients(self) -> list[asyncio.Task[None]]:
        """All of them, at work until `over`."""
        return [self.loop.create_task(self._client(kind)) for kind in KINDS for _ in range(CLIENTS[kind])]

    async def _client(self, kind: Kind) -> None:
        while not self.over:
            ticket = Ticket(kind, self._pick(WAYS, self._ways), self._options(), self.loop.time())
            ticket.task = self.loop.create_task(self._call(ticket))
            await asyncio.wait([ticket.task])
            # One that is refused at once and comes back at once would let no virtual time pass.
            await asyncio.sleep(self.some(self.thinking[kind] if ticket.called else 5))

    def some(self, paces: float) -> float:
        """A random time, in seconds, so many paces on average."""
        return self.chance.expovariate(1 / (paces * self.pace))

    def _pick(self, weights: Mapping[Any, int], items: list[Any]) -> Any:
        return self.chance.choices(items, list(weights.values()))[0]

    def _options(self) -> dict[str, Any]:
        draw, pace = self.chance.random, self.pace
        if draw() < 0.3:  # a plain call takes another way through the scheduler
            return {}
        options: dict[str, Any] = {"label": f"{draw()}"} if draw() < 0.7 else {}
        if draw() < 0.5:
            options["priority"] = self.chance.choice((-1, 0, 0.5, 2))
        if draw() < 0.3:
            options["queue_timeout"] = self.chance.choice((0, 0.5 * pace, 2 * pace, 10 * pace))
        if draw() < 0.3:
            options["run_timeout"] = self.chance.choice((0.2 * pace, pace, 5 * pace))
        if draw() < 0.1:
            options["observe"] = False
        return options

    async def _call(self, ticket: Ticket) -> None:
        kind, seen = ticket.kind, "returned"
        self.submitted[kind] += 1
        self.live[ticket] = None
        door = self._pick(DOORS, self._doors)
        try:
            await door(self.scheduler, kind, self._run, ticket, **ticket.options)
        except BaseException as error:
            seen = type(error).__name__
            if seen not in COUNTED_AS:
                self.blame("a call raised", ticket, repr(error))
            if not isinstance(error, Exception):
                raise
        finally:
            self._settle(ticket, seen)

    def _settle(self, ticket: Ticket, seen: str) -> None:
        self.expect(ticket in self.live, "settled twice", ticket)
        self.live.pop(ticket, None)
        kind = ticket.kind
        self.settled[kind] += 1
        self.outcomes[kind][seen] += 1
        self.cancelled_uncalled[kind] += seen == "CancelledError" and not ticket.called
        if ticket.cancels:
            self.expect(seen == "CancelledError" or ticket.swallowed, "a cancel was swallowed", seen, ticket)
        else:
            self.expect(seen != "CancelledError", "cancelled by nobody", ticket)
        owed = ticket.task.cancelling()
        self.expect(owed == ticket.cancels, "cancels of the scheduler's own are left, or one too many", owed, ticket)

    async def _run(self, ticket: Ticket) -> None:
        kind = ticket.kind
        self.expect(not ticket.called, "called twice", ticket)
        ticket.called, ticket.began = True, self.loop.time()
        self.called[kind] += 1
        if kind == "interactive":
            self.waits.append(ticket.began - ticket.arrived)
        self._inside[kind] += 1
        self._check_inside(kind)
        try:
            await ticket.work(self, ticket)
        finally:
            self._inside[kind] -= 1

    # The caps, counted inside the calls

    def bounds_changed(self) -> None:
        """To be called after each change of the limits.

        What got its slot before wakes in the next pass of the loop, before this callback, under the old bounds.
        """
        self._bounds_before.append(self._bounds)
        self._bounds = self._read_bounds()
        self.loop.call_soon(self._bounds_before.popleft)

    def _read_bounds(self) -> tuple[int, int]:
        """The cap, and how many batch calls may run as far as it is known beforehand."""
        now, policy = self.scheduler.snapshot(), self.policy
        fixed = policy.limit if isinstance(policy, FixedPolicy) else now.batch_max_concurrency
        return now.max_concurrency, max(now.batch_min_concurrency, min(now.batch_max_concurrency, fixed))

    def _check_inside(self, kind: str) -> None:
        cap, batch_max = self._bounds
        for earlier_cap, earlier_batch_max in self._bounds_before:
            cap, batch_max = max(cap, earlier_cap), max(batch_max, earlier_batch_max)
        inside = sum(self._inside.values())
        self.expect(inside <= cap, "more calls inside than the cap", inside, cap)
        if kind == "batch":
            batch = self._inside["batch"]
            self.expect(batch <= batch_max, "more batch calls inside than may run", batch, batch_max)

    # What must hold

    def check(self) -> bool:
        """Look at everything that must hold at any instant; False, and no blame, if a timer may be late."""
        snapshot = self.scheduler.snapshot()
        for kind, running, queued in (
            ("interactive", snapshot.interactive_running, snapshot.interactive_queued),
            ("batch", snapshot.batch_running, snapshot.batch_queued),
        ):
            totals = snapshot.totals[kind]
            ended = totals.completed + totals.failed + totals.cancelled + totals.timed_out + totals.rejected
            self.expect(totals.submitted == ended + running + queued, "the totals do not add up", snapshot)
            self.expect(totals.submitted == self.submitted[kind], "submitted and not counted", self.submitted, snapshot)
            self.expect(self._inside[kind] <= running, "calls inside without a slot", self._inside, snapshot)
        present = snapshot.running + snapshot.interactive_queued + snapshot.batch_queued
        self.expect(len(self.scheduler.calls()) == present <= len(self.live), "lost calls", snapshot)
        timers = len(self.schedulers_timers())
        self.expect(timers <= snapshot.running + 1, "more timers than calls", timers, snapshot)
        if isinstance(self.loop, VirtualTimeLoop):
            now = self.loop.time() - ROUNDING
            late = [ticket for ticket in self.live if ticket.queue_deadline < now]
            self.expect(not late, "still waiting after the end of their time", late)
        try:
            self.scheduler.check()
        except AssertionError as error:
            if isinstance(self.loop, VirtualTimeLoop):
                self.blame("check", repr(error))
            return False
        return True

    def armed_timers(self) -> list[asyncio.TimerHandle]:
        """Timers that the loop still holds, cancelled ones not counted."""
        if isinstance(self.loop, VirtualTimeLoop):
            return armed_timers()
        return [timer for timer in self.loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]

    def schedulers_timers(self) -> list[asyncio.TimerHandle]:
        """Those that the scheduler has set."""
        return [timer for timer in self.armed_timers() if _owner(timer).startswith("llm_traffic_scheduler.")]


def _owner(timer: asyncio.TimerHandle) -> str:
    """The module of the object whose method it calls."""
    return type(getattr(timer._callback, "__self__", None)).__module__  # type: ignore[attr-defined]


def _complaint(context: Mapping[str, Any]) -> str:
    """What asyncio could tell nobody else."""
    error = context.get("exception")
    lines = [] if error is None else traceback.format_exception(error)
    return f"{context['message']}\n{''.join(lines)}"


@way(12)
async def _sleep(crowd: Crowd, ticket: Ticket) -> None:
    await asyncio.sleep(crowd.some(1))


@way(2)
async def _return_at_once(crowd: Crowd, ticket: Ticket) -> None:
    pass


@way(2)
async def _look_at_the_slot(crowd: Crowd, ticket: Ticket) -> None:
    slot = current_slot()
    await asyncio.sleep(0)
    if (
        slot is None
        or slot is not current_slot()
        or (slot.kind, slot.label) != (ticket.kind, ticket.options.get("label"))
    ):
        crowd.blame("in a wrong slot", slot, ticket)


@way(2)
async def _fail(crowd: Crowd, ticket: Ticket) -> None:
    await asyncio.sleep(crowd.some(0.5))
    raise Boom


@way(1)
async def _fail_at_once(crowd: Crowd, ticket: Ticket) -> None:
    raise Boom


@way(2)
async def _clean_up(crowd: Crowd, ticket: Ticket) -> None:
    try:
        await asyncio.sleep(crowd.some(1))
    finally:
        await asyncio.sleep(crowd.some(0.5))


@way(2)
async def _run_on_when_cancelled(crowd: Crowd, ticket: Ticket) -> None:
    try:
        await asyncio.sleep(crowd.some(2))
    except asyncio.CancelledError:
        ticket.swallowed = True
        await asyncio.sleep(crowd.some(2))


@way(1)
async def _fail_when_cancelled(crowd: Crowd, ticket: Ticket) -> None:
    try:
        await asyncio.sleep(crowd.some(2))
    except asyncio.CancelledError:
        ticket.swallowed = True
        raise Boom from None


@way(1)
async def _hang_until_the_run_timeout(crowd: Crowd, ticket: Ticket) -> None:
    if "run_timeout" in ticket.options:
        await crowd.loop.create_future()


@way(2)
async def _end_and_cancel_whoever_gets_the_slot(crowd: Crowd, ticket: Ticket) -> None:
    await asyncio.sleep(crowd.some(1))
    crowd.loop.call_soon(_cancel_granted, crowd)


def _cancel_granted(crowd: Crowd) -> None:
    """Cancel those that have a slot and do not know it yet."""
    running = {info.label for info in crowd.scheduler.calls() if info.state == "running" and info.label}
    for ticket in list(crowd.live):
        if not ticket.called and ticket.options.get("label") in running:
            ticket.cancel()
            crowd.cancels["as it got its slot"] += 1
