"""Where the plays of `plays.py` are performed: one scheduler, its callers, and what became of each of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from llm_traffic_scheduler import CloseReport, Kind, SchedulerClosed, TrafficScheduler
from tests.behaviour.doors import Door, assert_whole, outcome, start
from tests.ledger import assert_accounted
from tests.support import account, armed_timers, make_scheduler, noop, other_tasks, settle

__all__ = ["JOBS", "Boom", "Stage"]

_KINDS: Final[tuple[Kind, Kind]] = ("interactive", "batch")


class Boom(Exception):
    """What a job raises."""


class Stage:
    """A scheduler, the calls in it by name, and everybody else who awaits it ("close", "drain").

    Whoever is in `tasks` can be cancelled at any time. `settings` are the scheduler's; a listener makes it tell
    everybody of everything, which is another way through its code.
    """

    def __init__(self, run: Door, settings: Mapping[str, Any], *, listens: bool = False) -> None:
        self.scheduler: TrafficScheduler = make_scheduler(**settings)
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.started: set[str] = set()
        self.cancels: Counter[str] = Counter()
        self.cancelled_unstarted: set[str] = set()
        self.swallowed: set[str] = set()  # their jobs have heard a cancel and not passed it on
        self.complaints: list[dict[str, Any]] = []
        self.most, self.most_batch = 0, 0
        self._run = run
        self._kinds: dict[str, str] = {}
        self._outcomes: dict[str, str] = {}
        self._late: set[str] = set()  # came after close
        self._closed = False
        self._gates: dict[str, asyncio.Future[None]] = {}
        self._inside: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.complaints.append(context))
        if listens:
            self.scheduler.add_listener(lambda event: None)

    # What happens in a play

    def submit(self, name: str, kind: str, job: str = "waits", **options: Any) -> None:
        """A new caller; `job` is one of JOBS."""
        self._kinds[name] = kind
        self._gates[name] = asyncio.get_running_loop().create_future()
        self.tasks[name] = start(self._caller(name, kind, job, options))

    def release(self, *names: str) -> None:
        """Let their jobs go on to their ends."""
        for name in names:
            if not self._gates[name].done():
                self._gates[name].set_result(None)

    def release_all(self) -> None:
        """Let every job go on to its end."""
        self.release(*self._gates)

    def close(self, name: str = "close", **options: Any) -> None:
        """Somebody closes the scheduler."""
        self.tasks[name] = start(self._close(options))

    def drain(self) -> None:
        """Somebody waits until nothing runs and nothing waits."""
        self.tasks["drain"] = start(self.scheduler.drain())

    def cancel(self, name: str) -> bool:
        """Cancel whoever bears this name; False if there is nobody, or nobody any more."""
        task = self.tasks.get(name)
        if task is None or not task.cancel():
            return False
        self.cancels[name] += 1
        if name in self._kinds and name not in self.started:
            self.cancelled_unstarted.add(name)
        return True

    @property
    def alive(self) -> frozenset[str]:
        """Who can be cancelled now."""
        return frozenset(name for name, task in self.tasks.items() if not task.done())

    # What callers and jobs do

    async def _close(self, options: dict[str, Any]) -> CloseReport:
        self._closed = True
        return await self.scheduler.close(**options)

    async def _caller(self, name: str, kind: str, job: str, options: dict[str, Any]) -> str:
        seen = "returned"
        if self._closed:
            self._late.add(name)
        try:
            result = await self._run(self.scheduler, kind, self._job, name, kind, JOBS[job], **options)
            assert result == name
            return name
        except BaseException as error:
            seen = type(error).__name__
            raise
        finally:
            assert name not in self._outcomes, "settled twice"
            self._outcomes[name] = seen
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == self.cancels[name], "our own cancels are not taken back, or one too many"

    async def _job(self, name: str, kind: str, work: Work) -> str:
        assert name not in self.started, "called twice"
        self.started.add(name)
        self._inside.append(kind)
        try:
            assert len(self._inside) <= self.most
            assert self._inside.count("batch") <= self.most_batch
            await work(self, name)
            return name
        finally:
            self._inside.remove(kind)

    async def _wait(self, name: str) -> None:
        await self._gates[name]
        await asyncio.sleep(0)

    async def _fail(self, name: str) -> None:
        await self._gates[name]
        raise Boom

    async def _clean_up(self, name: str) -> None:
        try:
            await self._gates[name]
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0.3)

    async def _return_when_cancelled(self, name: str) -> None:
        try:
            await self._gates[name]
        except asyncio.CancelledError:
            self.swallowed.add(name)

    async def _fail_when_cancelled(self, name: str) -> None:
        try:
            await self._gates[name]
        except asyncio.CancelledError:
            self.swallowed.add(name)
            raise Boom from None

    async def _ignore_the_first_cancel(self, name: str) -> None:
        try:
            await self._gates[name]
        except asyncio.CancelledError:
            self.swallowed.add(name)
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
        if self._closed:
            assert await outcome(self._run(self.scheduler, "interactive", noop)) is SchedulerClosed
        else:
            for kind in _KINDS:
                self.scheduler.resume(kind)
            self.scheduler.configure(max_queued_interactive=None)
            await assert_whole(self.scheduler)
        assert self.complaints == []

    def _check_endings(self, errors: tuple[type[BaseException], ...]) -> None:
        assert not self.cancelled_unstarted & self.started, "a call ran although it was cancelled while it waited"
        for name, task in self.tasks.items():
            assert task.done()
            if self.cancels[name] and name not in self.swallowed:
                assert task.cancelled(), f"the cancel of {name} was swallowed: {task}"
            elif not task.cancelled():
                error = task.exception()
                assert error is None or isinstance(error, errors), error
            else:
                assert self.cancels[name], f"{name} was cancelled by nobody"

    def _check_totals(self, kind: str) -> None:
        totals = account(self.scheduler, kind)
        own = {name: seen for name, seen in self._outcomes.items() if self._kinds[name] == kind}
        assert all(own[name] == "SchedulerClosed" for name in own.keys() & self._late if not self.cancels[name])
        counted = {name: seen for name, seen in own.items() if name not in self._late}
        called = self.started & counted.keys()
        met = _cancelled(seen for name, seen in counted.items() if name not in called)
        assert_accounted(totals, Counter(counted.values()), len(called), met)
        assert totals.submitted == len(counted)


def _cancelled(outcomes: Iterable[str]) -> int:
    return sum(seen == "CancelledError" for seen in outcomes)


Work = Callable[[Stage, str], Awaitable[None]]
# What a call does between its start and its end. All but the last two wait for `release`, unless they are cancelled.
JOBS: Final[Mapping[str, Work]] = {
    "waits": Stage._wait,
    "fails": Stage._fail,
    "cleans up": Stage._clean_up,
    "returns when cancelled": Stage._return_when_cancelled,
    "fails when cancelled": Stage._fail_when_cancelled,
    "ignores the first cancel": Stage._ignore_the_first_cancel,
}
