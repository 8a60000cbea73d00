"""Plays in which batch calls are stopped for interactive ones, and run again. Promises 11, 16, 17, 19, 20 and 23.

Everybody comes in the same moment, so nothing has been done yet that could be lost. "a" and "b" may be preempted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from llm_traffic_scheduler import CallAborted, RunTimeout, SchedulerClosed, SchedulerError
from tests.behaviour.acts import Act, Play, both, close, configure, enter, pause, release, resume
from tests.behaviour.nested_plays import gives_way, releases
from tests.behaviour.stage import Boom, Stage, Work

__all__ = ["PREEMPTED_PLAYS"]

_THREE_SLOTS: Final = {"max_concurrency": 3, "batch_max_concurrency": 2}
_EVERYBODY: Final = ("a", "b", "c", "d")


def meet(job: str | Work = "waits", *, tenants: tuple[str | None, str | None] = (None, None), **options: object) -> Act:
    """Two batch calls that may be preempted, and two interactive ones, the second of which finds no slot."""
    return both(
        enter(("a", "batch", "waits"), ("b", "batch", job), preemptible=True, tenant=tenants[0], **options),
        enter(("c", "interactive", "waits"), ("d", "interactive", "waits"), tenant=tenants[1]),
    )


def calls_when_stopped(name_inside: str) -> Work:
    """A call in a child task, which begins when the parent is first told to stop."""

    async def work(stage: Stage, name: str) -> None:
        try:
            await stage.gate(name)
        except asyncio.CancelledError:
            if name_inside not in stage.tasks:
                _ = stage.start(name_inside, "batch", label=name_inside)
                await asyncio.sleep(0)
            raise

    return work


async def calls_in_its_own_task(stage: Stage, name: str) -> None:
    """In each run a call in the same task, then a wait."""
    inside = f"{name}.in again" if f"{name}.in" in stage.outcomes else f"{name}.in"
    with suppress(SchedulerError):
        await stage.call(inside, "interactive", "waits", label=inside)
    await stage.gate(name)


PREEMPTED_PLAYS: Final[Mapping[str, Play]] = {
    "a call is preempted and runs again": Play(
        acts={0: meet(), 5: release("d"), 8: release("a", "b", "c")},
        most=3,
        most_batch=2,
        settings=_THREE_SLOTS,
        names=_EVERYBODY,
    ),
    "a call is preempted and cleans up, which takes time": Play(
        acts={0: meet("cleans up"), 5: release("d"), 8: release("a", "b", "c")},
        seconds=0.1,
        most=3,
        most_batch=2,
        settings=_THREE_SLOTS,
        names=_EVERYBODY,
    ),
    "a call that is to be preempted returns": Play(
        acts={0: meet("returns when cancelled"), 5: release("d"), 8: release("a", "b", "c")},
        most=3,
        most_batch=2,
        settings=_THREE_SLOTS,
        names=_EVERYBODY,
    ),
    "a call that is to be preempted fails": Play(
        acts={0: meet("fails when cancelled"), 5: release("d"), 8: release("a", "b", "c")},
        errors=(Boom,),
        most=3,
        most_batch=2,
        settings=_THREE_SLOTS,
        names=_EVERYBODY,
    ),
    "a call that is to be preempted runs on, into its run timeout": Play(
        acts={0: meet("ignores the first cancel", run_timeout=0.5), 9: release(*_EVERYBODY)},
        seconds=0.25,
        errors=(RunTimeout,),
        most=3,
        most_batch=2,
        settings=_THREE_SLOTS,
        names=_EVERYBODY,
    ),
    "a call is preempted and times out in its next run": Play(
        acts={0: meet(run_timeout=0.5), 3: release("d"), 7: release("a", "c")},
        seconds=0.25,
        errors=(RunTimeout,),
        most=3,
        most_batch=2,
        settings=_THREE_SLOTS,
        names=_EVERYBODY,
    ),
    "two are preempted at once, and one again": Play(
        acts={
            0: both(
                enter(("a", "batch", "waits"), ("b", "batch", "waits"), ("f", "batch", "waits"), preemptible=True),
                enter(("c", "interactive", "waits"), ("d", "interactive", "waits"), ("e", "interactive", "waits")),
            ),
            5: release("d", "e"),
            8: lambda stage: stage.submit("g", "interactive"),
            12: release("a", "b", "c", "f", "g"),
        },
        most=4,
        most_batch=3,
        settings={"max_concurrency": 4},
        names=(*_EVERYBODY, "f", "g"),
    ),
    "a preempted call waits until batch is resumed": Play(
        acts={
            0: meet(),
            4: both(pause("batch"), release("d")),
            7: resume("batch"),
            10: release("a", "b", "c"),
        },
        most=3,
        most_batch=2,
        settings=_THREE_SLOTS,
        names=_EVERYBODY,
    ),
    "the limits fall while a preempted call waits": Play(
        acts={
            0: meet(),
            4: both(configure(max_concurrency=2, batch_max_concurrency=1), release("d")),
            6: release("a"),
            9: release("b", "c"),
        },
        most=3,
        most_batch=2,
        settings=_THREE_SLOTS,
        names=_EVERYBODY,
    ),
    "the scheduler closes while a preempted call waits": Play(
        acts={0: meet(), 2: close(timeout=0.5)},
        seconds=0.25,
        errors=(CallAborted, SchedulerClosed),
        most=3,
        most_batch=2,
        settings=_THREE_SLOTS,
        names=_EVERYBODY,
    ),
    "the scheduler closes while a preempted call cleans up": Play(
        acts={0: both(meet("cleans up")), 1: close(timeout=0.1), 7: release("d")},
        seconds=0.1,
        errors=(CallAborted, SchedulerClosed),
        most=3,
        most_batch=2,
        settings=_THREE_SLOTS,
        names=_EVERYBODY,
    ),
    "the scheduler closes and a preempted call runs again": Play(
        acts={0: meet(), 3: close(timeout=None), 5: release("d"), 8: release("a", "b", "c")},
        errors=(SchedulerClosed,),
        most=3,
        most_batch=2,
        settings=_THREE_SLOTS,
        names=_EVERYBODY,
    ),
    "a call is preempted while a child of its takes the slot": Play(
        acts={0: meet(calls_when_stopped("b.1")), 6: release("b.1"), 9: release("d"), 12: release("a", "b", "c")},
        most=3,
        most_batch=2,
        settings=_THREE_SLOTS,
        names=(*_EVERYBODY, "b.1"),
    ),
    "calls that give way may be preempted as well": Play(
        acts={0: meet(gives_way), 5: release("b"), 8: release("d"), 10: release("a", "c", "b again")},
        most=3,
        most_batch=2,
        settings=_THREE_SLOTS,
        names=_EVERYBODY,
    ),
    "a call without its slot is not preempted": Play(
        acts={0: meet(releases), 5: release("b"), 8: release("d"), 10: release("a", "c", "b again")},
        most=3,
        most_batch=2,
        settings=_THREE_SLOTS,
        names=_EVERYBODY,
    ),
    "a call is preempted together with the one inside of it": Play(
        acts={0: meet(calls_in_its_own_task), 5: release("d"), 8: release("b.in again"), 10: release("a", "b", "c")},
        most=3,
        most_batch=2,
        settings=_THREE_SLOTS,
        names=(*_EVERYBODY, "b.in"),
    ),
    "tenants are preempted": Play(
        acts={0: meet(tenants=("x", "y")), 5: release("d"), 8: release("a", "b", "c")},
        most=3,
        most_batch=2,
        settings={**_THREE_SLOTS, "max_running_per_tenant": 2},
        names=_EVERYBODY,
    ),
}
