"""Where the plays of `plays.py` are performed: one scheduler, its callers, and what became of each of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, TypeAlias

from llm_traffic_scheduler import CloseReport, Kind, SchedulerClosed, kind_in_force
from llm_traffic_scheduler.call import Call
from llm_traffic_scheduler.surroundings import active_call
from tests.behaviour.doors import Door, assert_whole, outcome, through_submit
from tests.ledger import assert_accounted
from tests.support import account, armed_timers, noop, other_tasks, settle
from tests.watched import Told, Watched, owed_to_calls_around, own_task, slot_owner, tell, tenants_remembered

__all__ = ["JOBS", "Boom", "Stage", "Work"]

_KINDS: Final[tuple[Kind, Kind]] = ("interactive", "batch")

Work: TypeAlias = Callable[["Stage", str], Awaitable[None]]


class Boom(Exception):
    """What a job raises."""


class Stage:
    """A scheduler, the calls in it by name, and everybody else who awaits it ("close", "drain").

    Whoever is in `tasks` can be cancelled at any time. `settings` are the scheduler's; a listener makes it tell
    everybody of everything, which is another way through its code.
    """

    def __init__(self, run: Door, settings: Mapping[str, Any], *, listens: bool = False) -> None:
        self.scheduler = Watched(**{"max_concurrency": 2, **settings})
        self.tasks: dict[str, Told] = {}
        self.started: set[str] = set()
        self.gave_way: set[str] = set()
        self.cancelled_unstarted: set[str] = set()
        self.complaints: list[dict[str, Any]] = []
        self.most, self.most_batch = 0, 0
        self._run = run
        self._bound: int | None = settings.get("max_running_per_tenant")
        self._kinds: dict[str, str] = {}
        self._homes: dict[str, Told] = {}  # the tasks that calls are made in
        self.outcomes: dict[str, str] = {}
        self._late: set[str] = set()  # came after close
        self._closed = False
        self._gates: dict[str, asyncio.Future[None]] = {}
        self._inside: list[Call] = []
        self._at_work: set[str] = set()  # whose jobs are inside
        self.runs: Counter[str] = Counter()  # how often each job was called
        self._not_again: dict[str, int] = {}  # who was cancelled while it waited, and how often it had been called
        self._all_released = False
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.complaints.append(context))
        if listens:
            self.scheduler.add_listener(lambda event: None)

    # What happens in a play

    def submit(self, name: str, kind: Kind, job: str | Work = "waits", **options: Any) -> None:
        """A new caller, in a task of its own; `job` is one of JOBS, or a function like those."""
        _ = self.start(name, kind, job, **options)

    def start(self, name: str, kind: Kind, job: str | Work = "waits", **options: Any) -> Told:
        """As `submit`; returns the task, which a job may wait for."""
        self._kinds[name] = kind
        task = self.tasks[name] = self._start(self.call(name, kind, job, **options))
        self._homes[name] = task
        return task

    def _start(self, coro: Coroutine[Any, Any, Any]) -> Told:
        task = tell(coro, self._cancelled)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    def _cancelled(self, task: Told) -> None:
        waiting = self._homes.keys() - self.started - self.outcomes.keys()
        self.cancelled_unstarted |= {name for name in waiting if self._homes[name] is task}
        again = self.started - self._at_work - self.outcomes.keys()
        self._not_again |= {name: self.runs[name] for name in again if self._homes[name] is task}

    def gate(self, name: str) -> asyncio.Future[None]:
        """What is opened by `release(name)`."""
        if name not in self._gates or self._gates[name].cancelled():
            self._gates[name] = asyncio.get_running_loop().create_future()
            if self._all_released:
                self._gates[name].set_result(None)
        return self._gates[name]

    def release(self, *names: str) -> None:
        """Let their jobs go on to their ends."""
        for name in names:
            if not self.gate(name).done():
                self.gate(name).set_result(None)

    def release_all(self) -> None:
        """Let every job go on to its end."""
        self._all_released = True
        self.release(*self._gates)

    def close(self, name: str = "close", **options: Any) -> None:
        """Somebody closes the scheduler."""
        self.tasks[name] = self._start(self._close(options))

    def drain(self) -> None:
        """Somebody waits until nothing runs and nothing waits."""
        self.tasks["drain"] = self._start(self.scheduler.drain())

    def cancel(self, name: str) -> bool:
        """Cancel whoever bears this name; False if there is nobody, or nobody any more."""
        task = self.tasks.get(name)
        return task is not None and task.cancel()

    @property
    def alive(self) -> frozenset[str]:
        """Who can be cancelled now."""
        return frozenset(name for name, task in self.tasks.items() if not task.done())

    # What callers and jobs do

    async def _close(self, options: dict[str, Any]) -> CloseReport:
        self._closed = True
        return await self.scheduler.close(**options)

    async def call(self, name: str, kind: Kind | None, job: str | Work, **options: Any) -> str:
        """A call in the task that awaits this."""
        seen = "returned"
        task = self._homes[name] = own_task()
        self._kinds[name] = str(kind) if kind_in_force() != "batch" and kind is not None else str(kind_in_force())
        if self._closed:
            self._late.add(name)
        work = JOBS[job] if isinstance(job, str) else job
        if self._run is not through_submit:
            options.pop("preemptible", None)  # a block is run once
        often = 3 if options.get("preemptible") else 1
        try:
            result = await self._run(self.scheduler, kind, self._job, name, work, often, **options)
            assert result == name
            return name
        except BaseException as error:
            seen = type(error).__name__
            raise
        finally:
            assert name not in self.outcomes, "settled twice"
            self.outcomes[name] = seen
            owed = task.cancels + owed_to_calls_around()
            assert task.cancelling() == owed, "our own cancels are not taken back, or one too many"

    async def _job(self, name: str, work: Work, often: int) -> str:
        assert name not in self._at_work, "called while it runs"
        assert self.runs[name] < often, "called too often"
        self.runs[name] += 1
        self.started.add(name)
        self._at_work.add(name)
        call = active_call()
        assert call is not None
        assert call.kind == self._kinds[name]
        self._inside.append(call)
        try:
            self.look_inside()
            await work(self, name)
            return name
        finally:
            self._inside.remove(call)
            self._at_work.remove(name)
            if call.gave_way_once:
                self.gave_way.add(name)

    def look_inside(self) -> None:
        """Assert that no more calls are inside than may be, those counted as one that share a slot."""
        owners = {owner for call in self._inside if (owner := slot_owner(call)) is not None}
        assert len(owners) <= self.most
        assert sum(not owner.interactive for owner in owners) <= self.most_batch
        if self._bound is not None:
            assert max(Counter(owner.tenant for owner in owners).values(), default=0) <= self._bound

    async def _wait(self, name: str) -> None:
        await self.gate(name)
        await asyncio.sleep(0)

    async def _fail(self, name: str) -> None:
        await self.gate(name)
        raise Boom

    async def _clean_up(self, name: str) -> None:
        try:
            await self.gate(name)
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0.3)

    async def _return_when_cancelled(self, name: str) -> None:
        try:
            await self.gate(name)
        except asyncio.CancelledError:
            own_task().swallowed = True

    async def _fail_when_cancelled(self, name: str) -> None:
        try:
            await self.gate(name)
        except asyncio.CancelledError:
            own_task().swallowed = True
            raise Boom from None

    async def _ignore_the_first_cancel(self, name: str) -> None:
        try:
            await self.gate(name)
        except asyncio.CancelledError:
            own_task().swallowed = True
            await asyncio.sleep(1.6)

    # What must be so at the end

    async def check(self, errors: tuple[type[BaseException], ...]) -> None:
        """Everybody has settled, once, as `errors` allow; everything is counted, nothing is left, no slot is lost."""
        self._check_endings(errors)
        await settle()
        self.scheduler.check()
        for kind in _KINDS:
            self._check_totals(kind)
        assert self.scheduler.calls() == ()
        assert other_tasks() == set()
        assert armed_timers() == []
        assert tenants_remembered(self.scheduler) == set()
        assert all(admitted.over for admitted in self.scheduler.admitted.values())
        if self._closed:
            assert await outcome(self._run(self.scheduler, "interactive", noop)) is SchedulerClosed
        else:
            for kind in _KINDS:
                self.scheduler.resume(kind)
            self.scheduler.configure(max_queued_interactive=None, max_running_per_tenant=None)
            await assert_whole(self.scheduler)
        assert self.complaints == []

    def _check_endings(self, errors: tuple[type[BaseException], ...]) -> None:
        assert not self.cancelled_unstarted & self.started, "a call ran although it was cancelled while it waited"
        assert all(self.runs[name] == runs for name, runs in self._not_again.items()), "and so did one that ran before"
        for name, task in self.tasks.items():
            assert task.done()
            if task.cancels and not task.swallowed:
                assert task.cancelled(), f"the cancel of {name} was swallowed: {task}"
            elif not task.cancelled():
                error = task.exception()
                assert error is None or isinstance(error, errors), error
            else:
                assert task.cancels, f"{name} was cancelled by nobody"

    def _check_totals(self, kind: str) -> None:
        totals = account(self.scheduler, kind)
        own = {name: seen for name, seen in self.outcomes.items() if self._kinds[name] == kind}
        admitted = self.scheduler.admitted
        late = {name for name in own.keys() & self._late if name not in admitted}
        assert all(own[name] == "SchedulerClosed" for name in late if not self._homes[name].cancels)
        lent = {name for name in own if name in admitted and not admitted[name].counted}
        counted = {name: seen for name, seen in own.items() if name not in late | lent}
        called = self.started & counted.keys()
        met = _cancelled(seen for name, seen in counted.items() if name not in called)
        assert_accounted(totals, Counter(counted.values()), len(called), met)
        assert totals.submitted == len(counted)
        again = sum(self.runs[name] - 1 for name in self.started if self._kinds[name] == kind)
        waiting = sum(name in self._not_again for name in counted)
        assert again <= totals.preempted <= again + len(counted), (totals, self.runs)
        assert totals.preempted == again or waiting or self._closed, (totals, self.runs)


def _cancelled(outcomes: Iterable[str]) -> int:
    return sum(seen == "CancelledError" for seen in outcomes)


# What a call does between its start and its end. All but the last two wait for `release`, unless they are cancelled.
JOBS: Final[Mapping[str, Work]] = {
    "waits": Stage._wait,
    "fails": Stage._fail,
    "cleans up": Stage._clean_up,
    "returns when cancelled": Stage._return_when_cancelled,
    "fails when cancelled": Stage._fail_when_cancelled,
    "ignores the first cancel": Stage._ignore_the_first_cancel,
}
