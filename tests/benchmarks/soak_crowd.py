"""Who is in the soak: clients of both kinds, their calls and what those do, and everything that must hold for them.

How a call may behave is in `soak_ways.py`; a new way to ask for a slot is one more entry of DOORS.
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

from llm_traffic_scheduler import FixedPolicy, Kind, LimitPolicy, StreamClosed, TrafficScheduler, kind_in_force, traffic
from llm_traffic_scheduler.call import Call
from llm_traffic_scheduler.core.admission import GONE, LENT_ON, QUEUED, RUNNING
from llm_traffic_scheduler.surroundings import active_call
from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.behaviour.doors import Door, through_slot, through_submit
from tests.benchmarks.soak_streams import read_stream
from tests.benchmarks.soak_ways import WAYS, Work
from tests.ledger import COUNTED_AS
from tests.support import armed_timers
from tests.watched import Told, Watched, owed_to_calls_around, slot_owner, tell

__all__ = ["DOORS", "KINDS", "Crowd", "Ticket"]

KINDS: Final[tuple[Kind, Kind]] = ("interactive", "batch")
CLIENTS: Final[Mapping[str, int]] = {"interactive": 32, "batch": 40}
TENANTS: Final = ("red", "green", "blue", "white", "black")
DEEPEST: Final = 3
STREAMS: Final = 0.15  # of the calls that are inside of no other
FAULTS_KEPT: Final = 20
ROUNDING: Final = 1e-9


async def through_wrap(scheduler: TrafficScheduler, kind: Kind, job: Any, *args: Any, **options: Any) -> Any:
    """Run `job(*args)` wrapped."""
    wrapped: Callable[..., Awaitable[Any]] = scheduler.wrap(kind, **options)(job)
    return await wrapped(*args)


async def through_traffic(scheduler: TrafficScheduler, kind: Kind, job: Any, *args: Any, **options: Any) -> Any:
    """Run `job(*args)` in a block; one in batch says that it is interactive."""
    with traffic(kind, tenant=options.pop("tenant", None)):
        return await scheduler.submit(None if kind == "interactive" else "interactive", job, *args, **options)


DOORS: Final[Mapping[Door, int]] = {through_submit: 12, through_slot: 4, through_wrap: 1, through_traffic: 2}


@dataclass(eq=False, slots=True)
class Ticket:
    """One call.

    Attributes:
        depth: of how many calls it is inside.
        task: the one it is made in; a call inside of it may be made there too.
        call: the scheduler's record, once its function was called.
    """

    kind: Kind
    work: Work
    options: dict[str, Any]
    arrived: float
    depth: int = 0
    task: Told = field(init=False)
    began: float = math.inf
    call: Call | None = None

    @property
    def called(self) -> bool:
        """Its function was called."""
        return self.call is not None

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
        self.task.cancel()


# The cap, how many batch calls may run as far as it is known beforehand, and how many of one tenant.
Bounds: TypeAlias = tuple[int, int, float]


class Crowd:
    """Clients that submit one call after another, and a ledger of what became of the calls.

    `pace` is what a call takes on average, in seconds; every other time is a multiple of it. `thinking` is how long
    clients of a kind wait between two calls, in paces.
    """

    def __init__(self, pace: float, chance: random.Random) -> None:
        self.loop = asyncio.get_running_loop()
        self.pace, self.chance = pace, chance
        self.scheduler = Watched(max_concurrency=16, window=20 * pace, batch_starvation_timeout=10 * pace)
        self.thinking: dict[str, float] = {"interactive": 1.0, "batch": 0.1}
        self.policy: LimitPolicy | None = None
        self.over = False
        self.live: dict[Ticket, None] = {}
        self.in_threads = Counter[str]()  # calls from threads, which may have come in or not
        self.streams = 0  # that somebody reads
        self.late_readers = Counter[str]()  # that heard of something else than their streams' having been idle
        self.uncounted = 0  # that were in lent slots
        self.submitted, self.settled, self.called = Counter[str](), Counter[str](), Counter[str]()
        self.outcomes = {kind: Counter[str]() for kind in KINDS}
        self.cancelled_uncalled, self.cancels, self.done = Counter[str](), Counter[str](), Counter[str]()
        self.waits = array("d")  # of interactive calls that got a slot
        self.faults: list[str] = []
        self.fault_count = 0
        self._inside: dict[Ticket, None] = {}
        self._bounds = self._read_bounds()
        self._bounds_before: deque[Bounds] = deque()
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
            ticket = self._ticket(kind)
            ticket.task = tell(self._call(ticket))
            await asyncio.wait([ticket.task])
            # One that is refused at once and comes back at once would let no virtual time pass.
            await asyncio.sleep(self.some(self.thinking[kind] if ticket.called else 5))

    def _ticket(self, kind: Kind, depth: int = 0) -> Ticket:
        return Ticket(kind, self._pick(WAYS, self._ways), self.options(), self.loop.time(), depth)

    def _inner(self, outer: Ticket) -> Ticket:
        """One inside; the scheduler is watched by its label."""
        ticket = self._ticket("batch" if kind_in_force() == "batch" else self.chance.choice(KINDS), outer.depth + 1)
        ticket.options["label"] = f"{self.chance.random()}"
        return ticket

    async def nest(self, outer: Ticket) -> None:
        """A call inside of another, in its task."""
        if outer.depth < DEEPEST:
            ticket = self._inner(outer)
            ticket.task = outer.task
            await self._call(ticket)

    def child(self, outer: Ticket) -> list[Told]:
        """A call inside of another, in a task of its own; none if that is very deep already."""
        if outer.depth == DEEPEST:
            return []
        ticket = self._inner(outer)
        ticket.task = tell(self._call(ticket))
        return [ticket.task]

    def some(self, paces: float) -> float:
        """A random time, in seconds, so many paces on average."""
        return self.chance.expovariate(1 / (paces * self.pace))

    def _pick(self, weights: Mapping[Any, int], items: list[Any]) -> Any:
        return self.chance.choices(items, list(weights.values()))[0]

    def options(self) -> dict[str, Any]:
        """What a call says of itself."""
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
        if draw() < 0.5:
            options["tenant"] = self.chance.choice(TENANTS)
        return options

    async def _call(self, ticket: Ticket) -> None:
        kind, seen = ticket.kind, "returned"
        self.submitted[kind] += not ticket.depth  # one inside of another counts if it gets a slot of its own
        self.live[ticket] = None
        try:
            if not ticket.depth and self.chance.random() < STREAMS:
                await self._stream(ticket)
            else:
                door = self._pick(DOORS, self._doors)
                await door(self.scheduler, kind, self.run, ticket, **ticket.options)
        except BaseException as error:
            idle = isinstance(error, StreamClosed) and error.idle is not None
            seen = "idle" if idle else type(error).__name__
            if seen not in COUNTED_AS:
                self.blame("a call raised", ticket, "".join(traceback.format_exception(error)))
            if not isinstance(error, Exception):
                raise
        finally:
            self._settle(ticket, seen)

    async def _stream(self, ticket: Ticket) -> None:
        self.streams += 1
        try:
            await read_stream(self, ticket.kind, ticket, **ticket.options)
        finally:
            self.streams -= 1

    def _settle(self, ticket: Ticket, seen: str) -> None:
        self.expect(ticket in self.live, "settled twice", ticket)
        self.live.pop(ticket, None)
        self.count(ticket, seen)
        task, owed = ticket.task, owed_to_calls_around()
        if task.cancels:
            self.expect(seen == "CancelledError" or task.swallowed, "a cancel was swallowed", seen, ticket)
        else:
            self.expect(seen != "CancelledError" or owed > 0, "cancelled by nobody", ticket)
        owed += task.cancels
        self.expect(task.cancelling() == owed, "cancels of the scheduler's own are left, or one too many", owed, ticket)

    def count(self, ticket: Ticket, seen: str) -> None:
        """The call has ended, and its caller has seen this."""
        admitted = self.scheduler.admitted.pop(ticket.options.get("label", ""), None)
        if admitted is not None and not admitted.counted:
            self.uncounted += 1
            return
        kind = ticket.kind
        self.submitted[kind] += ticket.depth > 0
        self.settled[kind] += 1
        self.outcomes[kind][seen] += 1
        self.cancelled_uncalled[kind] += seen == "CancelledError" and not ticket.called

    async def run(self, ticket: Ticket) -> None:
        """What each call does that has a slot."""
        self.expect(not ticket.called, "called twice", ticket)
        ticket.call, ticket.began = active_call(), self.loop.time()
        self.expect(ticket.called, "called without a slot", ticket)
        self._inside[ticket] = None
        lent = self._is_lent(ticket)
        if not lent:
            self.called[ticket.kind] += 1
            self._check_inside(ticket)
        if ticket.kind == "interactive" and not ticket.depth:
            self.waits.append(ticket.began - ticket.arrived)
        try:
            await ticket.work(self, ticket)
        finally:
            del self._inside[ticket]

    def _is_lent(self, ticket: Ticket) -> bool:
        admitted = self.scheduler.admitted.get(ticket.options.get("label", ""))
        return admitted is not None and admitted.lent

    # The caps, counted inside the calls

    def bounds_changed(self) -> None:
        """To be called after each change of the limits.

        What got its slot before wakes in the next pass of the loop, before this callback, under the old bounds.
        """
        self._bounds_before.append(self._bounds)
        self._bounds = self._read_bounds()
        self.loop.call_soon(self._bounds_before.popleft)

    def _read_bounds(self) -> Bounds:
        now, policy, limits = self.scheduler.snapshot(), self.policy, self.scheduler._settings.limits
        fixed = policy.limit if isinstance(policy, FixedPolicy) else now.batch_max_concurrency
        batch_max = max(now.batch_min_concurrency, min(now.batch_max_concurrency, fixed))
        return now.max_concurrency, batch_max, limits.max_running_per_tenant or math.inf

    def _slots(self) -> set[Call]:
        """The owners of all slots that calls are inside of."""
        calls = [ticket.call for ticket in self._inside if ticket.call is not None]
        return {owner for call in calls if (owner := slot_owner(call)) is not None}

    def _check_inside(self, ticket: Ticket) -> None:
        cap, batch_max, tenant_max = (max(each) for each in zip(self._bounds, *self._bounds_before, strict=True))
        slots, tenant = self._slots(), ticket.call and ticket.call.tenant
        self.expect(len(slots) <= cap, "more calls inside than the cap", len(slots), cap)
        if ticket.kind == "batch":
            batch = sum(not owner.interactive for owner in slots)
            self.expect(batch <= batch_max, "more batch calls inside than may run", batch, batch_max)
        running = sum(owner.tenant == tenant for owner in slots)
        self.expect(running <= tenant_max, "more calls of a tenant inside than may run", running, tenant_max, tenant)

    # What must hold

    def check(self) -> bool:
        """Look at everything that must hold at any instant; False, and no blame, if a timer may be late."""
        self._check_counts()
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

    def _check_counts(self) -> None:
        snapshot, slots = self.scheduler.snapshot(), self._slots()
        for kind, running, queued in (
            ("interactive", snapshot.interactive_running, snapshot.interactive_queued),
            ("batch", snapshot.batch_running, snapshot.batch_queued),
        ):
            totals = snapshot.totals[kind]
            ended = totals.completed + totals.failed + totals.cancelled + totals.timed_out + totals.rejected
            self.expect(totals.submitted == ended + running + queued, "the totals do not add up", snapshot)
            known = self.submitted[kind] + sum(ticket.kind == kind and self._counts(ticket) for ticket in self.live)
            unsure = totals.submitted - known
            self.expect(0 <= unsure <= self.in_threads[kind], "submitted and not counted", kind, known, snapshot)
            inside = sum(owner.kind == kind for owner in slots)
            self.expect(inside <= running, "calls inside without a slot", inside, snapshot)
        present = snapshot.running + snapshot.interactive_queued + snapshot.batch_queued
        admission = self.scheduler._home.admission
        hidden = sum(nested is True for nested in admission.aside.values())
        self.expect(len(self.scheduler.calls()) == present + hidden, "lost calls", snapshot)
        ended_early = sum(call.state == LENT_ON for call in admission.calls())
        known = len(self.live) + self.in_threads.total() + ended_early
        self.expect(present + hidden <= known, "calls that nobody waits for", known, snapshot)
        timers, lent = len(self.schedulers_timers()), sum(map(self._uses_lent_slot, self.live))
        self.expect(timers <= snapshot.running + lent + 1 + self.streams, "more timers than calls", timers, snapshot)

    def _uses_lent_slot(self, ticket: Ticket) -> bool:
        """Now: also one that has given up a slot of its own before."""
        admitted = self.scheduler.admitted.get(ticket.options.get("label", ""))
        nesting = None if admitted is None else admitted.call.nesting
        return nesting is not None and nesting.lender is not None

    def _counts(self, ticket: Ticket) -> bool:
        """A call inside of another is in the totals by itself now."""
        if not ticket.depth:
            return False
        admitted = self.scheduler.admitted.get(ticket.options["label"])
        if admitted is None:
            return True
        call, admission = admitted.call, self.scheduler._home.admission
        if call.state == GONE:
            return admitted.counted
        if call.state == QUEUED:
            return admission.aside.get(call) is not True
        return call in admission.away or (call.state == RUNNING and (call.nesting is None or not call.nesting.lender))

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
