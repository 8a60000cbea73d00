"""Which waiting call runs next, and when to look again.

Floor: ground. No clock, no asyncio, no I/O: time comes in as `now`, decisions go out.
Algorithm: two queues in front of one set of slots, a cap on both kinds together and a moving
limit on batch. Room is always recomputed from the calls that run (`limit - running`) and never
carried along as a difference: a limit lowered below what runs and raised again would otherwise
release slots that do not exist (anyio #1223, CPython's Semaphore with a negative value).
"""

from __future__ import annotations

import math
from typing import Final, Generic

from . import invariants, presence, stepping_aside
from .admissible import AWAY, GONE, LENT_ON, QUEUED, RUNNING, Admissible, Aside, BatchLimit, CallT, Limits
from .arrival_order import ArrivalOrder
from .fair_queue import AnyQueue, FairQueue
from .priority_queue import PriorityQueue
from .running_items import RunningItems
from .running_tenants import RunningTenants

__all__ = ["AWAY", "GONE", "LENT_ON", "QUEUED", "RUNNING", "Admissible", "Admission", "BatchLimit", "Limits"]

_NEVER: Final = math.inf


class Admission(Generic[CallT]):
    """Two queues and the calls that run; decides who starts.

    A call is QUEUED, then RUNNING, then GONE, or skips what comes before; one that gives way goes from RUNNING to AWAY
    and comes back to QUEUED. Whoever changes something calls `expire` and `fill` afterwards: then no call that may run
    is waiting.

    As long as no tenant's call waits and no bound is set for them, the queues are plain ones. From then on both
    are fair ones, and the dicts of running calls tell them who starts and ends.

    Complexity: `offer`, `release`, `withdraw` and each call that `fill` starts O(log n).
    Threads: one owns it; the reading methods are safe from others if a RuntimeError is tried again.
    """

    __slots__ = (
        "_batch_ceiling",
        "_batch_door",
        "_batch_stragglers",
        "_cap",
        "_deadlines",
        "_floor",
        "_interactive_ceiling",
        "_interactive_door",
        "_interactive_stragglers",
        "_last_batch_start",
        "_limiter",
        "_number",
        "_waiting_since",
        "aside",
        "away",
        "batch_queue",
        "batch_running",
        "dropped",
        "interactive_queue",
        "interactive_running",
        "limits",
        "paused",
        "tenants",
        "timed",
    )

    def __init__(self, limits: Limits, limiter: BatchLimit) -> None:
        self.interactive_queue: AnyQueue[CallT] = PriorityQueue()
        self.batch_queue: AnyQueue[CallT] = PriorityQueue()
        # dicts for their order: a set would make what close() cancels first a matter of addresses.
        self.interactive_running: dict[CallT, None] = {}
        self.batch_running: dict[CallT, None] = {}
        self.tenants: RunningTenants | None = None  # None: the queues are plain
        self.paused: frozenset[str] = frozenset()
        self.aside: Aside[CallT] = Aside()
        # Calls that gave their slot up and do not wait for one: AWAY, or in a slot that is lent to them.
        self.away: dict[CallT, None] = {}
        # Calls that `fill` found left; whoever calls it takes them out and accounts for them.
        self.dropped: list[CallT] = []
        # Time alone may change who runs or waits: somebody has a deadline, or batch work waits although a slot is free.
        self.timed = False
        self._limiter = limiter
        # Who did not join the queue's run, which is in the order of arrival by itself: those that came out of order.
        self._interactive_stragglers: ArrivalOrder[CallT] = ArrivalOrder()
        self._batch_stragglers: ArrivalOrder[CallT] = ArrivalOrder()
        self._deadlines: PriorityQueue[CallT] = PriorityQueue()
        self._number = 0
        self._waiting_since = self._last_batch_start = -math.inf
        self.set_limits(limits)

    # What happens

    def offer(self, call: CallT) -> int:
        """RUNNING: it runs from now on. QUEUED: it waits. GONE: its queue is full, or it may not wait at all."""
        return self.offer_as(call, False)

    def offer_as(self, call: CallT, exempt: bool) -> int:
        """The same; `exempt` from the bound on its queue.

        No default for that: a call of a function that fills one in costs a twentieth of a Semaphore more.
        """
        self._number = call.number = self._number + 1
        running = len(self.interactive_running) + len(self.batch_running)
        if call.interactive:
            if running >= self._interactive_door or self.interactive_queue.size:
                bound = None if exempt else self.limits.max_queued_interactive
                return self._enqueue(call, self.interactive_queue, self._interactive_stragglers, bound)
            call.started_at, call.state = call.submitted, RUNNING
            self.interactive_running[call] = None
        else:
            if running >= self._batch_door or self.batch_queue.size or not self._batch_allowed(call.submitted):
                if running < self._cap:
                    self.timed = True
                bound = None if exempt else self.limits.max_queued_batch
                return self._enqueue(call, self.batch_queue, self._batch_stragglers, bound)
            call.started_at, call.state = call.submitted, RUNNING
            self.batch_running[call] = None
            self._last_batch_start = call.submitted
        return RUNNING

    def give_number(self, call: CallT) -> None:
        """A call that is lent a slot at once has a place all the same, should it ever wait."""
        self._number = call.number = self._number + 1

    def _enqueue(self, call: CallT, queue: AnyQueue[CallT], stragglers: ArrivalOrder[CallT], bound: int | None) -> int:
        if self.tenants is None:
            if call.tenant is not None:
                self._share()
                queue, stragglers = self._queue(call.interactive), self._stragglers(call.interactive)
        elif not queue.ready and not self.tenants.at_bound(call.tenant) and self._room(call):
            return self._pass(call)
        now = call.queued_at = call.started_at = call.submitted  # readers in other threads may look at any time
        full = bound is not None and queue.size >= bound and self.newcomers(call.interactive) >= bound
        if full or call.deadline <= now:
            call.state = GONE
            return GONE
        if not queue.size and not call.interactive:
            self._waiting_since = now
        call.state = QUEUED
        if not queue.push(call, call.priority, call.number):
            stragglers.append(call)
        if call.deadline != _NEVER:
            self._deadlines.push(call, call.deadline, call.number)
            self.timed = True
        return QUEUED

    def newcomers(self, interactive: bool) -> int:
        """How many wait and count against the kind's bound: bulk work does not, nor what is nested or came back."""
        return self._queue(interactive).size - self.aside.of_kind(interactive)

    def _room(self, call: CallT) -> bool:
        """A slot is free, and its kind may have it."""
        if call.interactive:
            return self.running < self._interactive_ceiling
        return self.running < self._cap and self._batch_allowed(call.submitted)

    def _pass(self, call: CallT) -> int:
        """Start a newcomer: whoever waits is at the bound, and it is not."""
        call.started_at, call.state = call.submitted, RUNNING
        if call.interactive:
            self.interactive_running[call] = None
        else:
            self.batch_running[call] = None
            self._last_batch_start = call.submitted
        return RUNNING

    def _share(self) -> None:
        """From now on tenants share."""
        self.tenants = RunningTenants(self.limits.max_running_per_tenant)
        interactive = FairQueue.from_queue(self.interactive_queue, self.interactive_running, self.tenants)
        batch = FairQueue.from_queue(self.batch_queue, self.batch_running, self.tenants)
        for call in self.away:
            (interactive if call.interactive else batch).set_aside(call)
        self.interactive_running = RunningItems(self.interactive_running, interactive)
        self.batch_running = RunningItems(self.batch_running, batch)
        self.interactive_queue, self.batch_queue = interactive, batch
        # Nobody is in a run any more.
        self._interactive_stragglers = ArrivalOrder(sorted(interactive, key=lambda call: call.number))
        self._batch_stragglers = ArrivalOrder(sorted(batch, key=lambda call: call.number))

    def bound(self, interactive: bool) -> int | None:
        """How many calls of the kind may wait, None for any number."""
        return self.limits.max_queued_interactive if interactive else self.limits.max_queued_batch

    def withdraw(self, call: CallT) -> None:
        """Take out a call that waits; it will not run."""
        queue = self.interactive_queue if call.interactive else self.batch_queue
        queue.discard(call.number)
        call.state = GONE
        self._forget(call, queue, self._stragglers(call.interactive))

    def release(self, call: CallT) -> int:
        """Take back the slot of a call that runs; returns how many wait for one."""
        del (self.interactive_running if call.interactive else self.batch_running)[call]
        call.state = GONE
        return self.interactive_queue.size + self.batch_queue.size

    def expire(self, now: float) -> list[CallT]:
        """Withdraw and return the calls whose time to wait is over, earliest deadline first."""
        expired: list[CallT] = []
        while (call := self._deadlines.peek()) is not None and call.deadline <= now:
            self.withdraw(call)
            expired.append(call)
        return expired

    def fill(self, now: float) -> list[CallT]:
        """Start every waiting call that may run, in order, and return them. Call `expire` first.

        One whose caller has left in this same pass, and has not noticed yet, is dropped: the slot goes on to the next.
        """
        started: list[CallT] = []
        interactive_queue, batch_queue, batch_running = self.interactive_queue, self.batch_queue, self.batch_running
        running, cap = len(self.interactive_running) + len(batch_running), self._cap
        limiter, held_back = self._limiter, False
        while running < cap:
            if interactive_queue.ready and self._interactive_ceiling and not self._batch_goes_first(now):
                queue, stragglers = interactive_queue, self._interactive_stragglers
            elif batch_queue.ready and (batch := len(batch_running)) < self._batch_ceiling:
                # As `_batch_allowed` and `limit`, two frames less.
                limit = limiter.kept if limiter.fresh and now < limiter.kept_until else 0
                if batch >= limit and (held_back := not self._batch_allowed(now)):
                    break
                queue, stragglers = batch_queue, self._batch_stragglers
            else:
                break
            call = queue.pop()
            call.state = GONE
            if stragglers or self.aside or call.deadline != _NEVER:
                self._forget(call, queue, stragglers)
            if call.left:
                self.dropped.append(call)
                continue
            call.started_at, call.state = now, RUNNING  # in this order, and before a reader can find it there
            (self.interactive_running if call.interactive else batch_running)[call] = None
            if not call.interactive:
                self._last_batch_start = now
            running += 1
            started.append(call)
        self.timed = held_back or self._deadlines.size > 0
        return started

    def _forget(self, call: CallT, queue: AnyQueue[CallT], stragglers: ArrivalOrder[CallT]) -> None:
        """The call has left its queue: strike it off what is kept beside."""
        if self.aside:
            self.aside.drop(call)
        if stragglers:
            stragglers.sweep(queue.size)
        if call.deadline != _NEVER:
            self._deadlines.discard(call.number)

    def set_limits(self, limits: Limits) -> None:
        """New bounds; what runs goes on."""
        self.limits = limits
        self._cap, self._floor = limits.max_concurrency, limits.batch_min
        self._interactive_ceiling = 0 if "interactive" in self.paused else limits.max_concurrency
        self._batch_ceiling = 0 if "batch" in self.paused else limits.batch_max
        if limits.max_running_per_tenant is not None and self.tenants is None:
            self._share()
        if self.tenants is not None:
            self.tenants.max_running_per_tenant = limits.max_running_per_tenant
        # With a bound on tenants nobody walks in unasked.
        bound = limits.max_running_per_tenant is not None
        self._interactive_door, self._batch_door = (0, 0) if bound else (self._interactive_ceiling, self._cap)

    def set_paused(self, paused: frozenset[str], now: float) -> None:
        """Kinds of which nothing starts. The starvation guard counts anew when batch is resumed."""
        if "batch" in self.paused - paused:
            self._waiting_since = now
        self.paused = paused
        self.set_limits(self.limits)

    # What is so

    @property
    def running(self) -> int:
        """Slots taken, both kinds together."""
        return len(self.interactive_running) + len(self.batch_running)

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not (self.running or self.interactive_queue.size or self.batch_queue.size or self.away)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Interactive running and queued, batch running and queued."""
        interactive, batch = len(self.interactive_running), len(self.batch_running)
        return interactive, self.interactive_queue.size, batch, self.batch_queue.size

    def next_look(self, now: float) -> float:
        """When to call `expire` and `fill` although nothing happens; infinity if there is no need.

        Only a queue deadline, or a batch limit that rises by itself while a slot is free, can change who may run.
        """
        first = self._deadlines.peek() if self._deadlines.size else None
        due = math.inf if first is None else first.deadline
        if self.batch_queue.ready and self.running < self._cap and len(self.batch_running) < self._batch_ceiling:
            due = min(due, self._limiter.next_look(now))
        return due

    # Further rooms: who goes without a slot for a while; who is there, and for how long; what always holds.
    give_up = stepping_aside.give_up
    keep_away = stepping_aside.keep_away
    come_back = stepping_aside.come_back
    leave = stepping_aside.leave
    oldest_wait = presence.oldest_wait
    oldest_unfinished = presence.oldest_unfinished
    unfinished = presence.unfinished
    waiting = presence.waiting
    calls = presence.calls
    check = invariants.check
    check_conserving = invariants.check_conserving

    # How it is decided

    def _queue(self, interactive: bool) -> AnyQueue[CallT]:
        return self.interactive_queue if interactive else self.batch_queue

    def _stragglers(self, interactive: bool) -> ArrivalOrder[CallT]:
        return self._interactive_stragglers if interactive else self._batch_stragglers

    def _batch_allowed(self, now: float) -> bool:
        running = len(self.batch_running)
        # Below the floor no policy has a say, so none is asked.
        return running < self._batch_ceiling and (running < self._floor or running < self._limiter.limit(now))

    def _batch_goes_first(self, now: float) -> bool:
        """It starves, and may run."""
        timeout = self.limits.starvation_timeout
        return (
            timeout is not None
            and self.batch_queue.ready > 0
            and len(self.batch_running) < self.limits.batch_min
            and now - max(self._last_batch_start, self._waiting_since) >= timeout
            and self._batch_allowed(now)
        )
