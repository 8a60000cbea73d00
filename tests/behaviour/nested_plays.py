"""Plays with calls inside of calls, calls that give way, and tenants. Promises 2, 17, 19 and 23."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from llm_traffic_scheduler import (
    CallAborted,
    RunTimeout,
    SchedulerClosed,
    SchedulerError,
    checkpoint,
    current_slot,
    traffic,
)
from tests.behaviour.acts import NAMES, Play, both, close, configure, enter, release
from tests.behaviour.stage import Stage, Work

__all__ = ["NESTED_PLAYS"]


# What the calls do. A child of "a" is "a.in", in the same task, or "a.1" and "a.2" in tasks of their own.


def calls_inside(job: str | Work = "waits", **options: Any) -> Work:
    """A call in the same task, then a wait."""

    async def work(stage: Stage, name: str) -> None:
        with suppress(SchedulerError):
            await stage.call(f"{name}.in", "interactive", job, label=f"{name}.in", **options)
        await stage.gate(name)

    return work


def gathers(job: str | Work = "waits", **options: Any) -> Work:
    """Two calls in child tasks, waited for."""

    async def work(stage: Stage, name: str) -> None:
        tasks = [_child(stage, f"{name}.{number}", job, **options) for number in (1, 2)]
        await asyncio.gather(*tasks, return_exceptions=True)

    return work


def _child(stage: Stage, name: str, job: str | Work, **options: Any) -> asyncio.Task[Any]:
    return stage.start(name, "interactive", job, label=name, **options)


async def leaves_one_behind(stage: Stage, name: str) -> None:
    """A call in a child task that nobody waits for."""
    _ = _child(stage, f"{name}.1", "waits")
    await stage.gate(name)


async def gives_way(stage: Stage, name: str) -> None:
    """A checkpoint between two waits."""
    await stage.gate(name)
    slot = current_slot()
    await checkpoint()
    assert current_slot() is slot
    stage.look_inside()
    await stage.gate(f"{name} again")


async def releases(stage: Stage, name: str) -> None:
    """Without its slot for a while."""
    slot = current_slot()
    assert slot is not None
    async with slot.released():
        assert current_slot() is None
        await stage.gate(name)
    assert current_slot() is slot
    stage.look_inside()
    await stage.gate(f"{name} again")


async def gathers_while_released(stage: Stage, name: str) -> None:
    """Two calls in child tasks, for which there is no slot to lend until it is back."""
    slot = current_slot()
    assert slot is not None
    async with slot.released():
        tasks = [_child(stage, f"{name}.{number}", "waits") for number in (1, 2)]
        await stage.gate(name)
    await asyncio.gather(*tasks, return_exceptions=True)


async def cleans_up_by_a_call(stage: Stage, name: str) -> None:
    """Released at first, then not; whatever ends it, one call more."""
    slot = current_slot()
    assert slot is not None
    try:
        async with slot.released():
            await stage.gate(name)
        await stage.gate(f"{name} again")
    finally:
        with suppress(SchedulerError):
            await stage.call(f"{name}.in", "interactive", "waits", label=f"{name}.in")


async def is_batch_traffic(stage: Stage, name: str) -> None:
    """A call that says no kind, and one that says another, in a block of batch."""
    with traffic("batch", tenant="nightly"):
        await stage.call(f"{name}.in", None, "waits", label=f"{name}.in")
        await asyncio.gather(_child(stage, f"{name}.1", "waits"), return_exceptions=True)


_LENT: Final = (*NAMES, "a.1", "a.2")
_SHARED: Final = (*NAMES, "a.in")
_WIDE: Final = {"max_concurrency": 3, "batch_max_concurrency": 2, "interactive_p95_threshold": 1e9}

NESTED_PLAYS: Final[Mapping[str, Play]] = {
    "a call makes one inside, in its own task": Play(
        acts={
            0: enter(
                ("a", "interactive", calls_inside()), ("b", "batch", calls_inside()), ("c", "interactive", "waits")
            ),
            3: release("a.in", "b.in"),
            5: release("b", "c"),
            7: release("a"),
        },
        names=(*_SHARED, "b.in"),
    ),
    "two child tasks take turns in the slot that is lent": Play(
        acts={
            0: enter(("a", "batch", gathers()), ("b", "interactive", "waits"), ("c", "interactive", "waits")),
            3: release("a.1"),
            6: release("a.2"),
            8: release("b", "c"),
        },
        names=_LENT,
    ),
    "one child has the slot that is lent, the other gets its own": Play(
        acts={
            0: enter(("a", "interactive", gathers()), ("b", "batch", "waits")),
            3: release("b"),
            5: lambda stage: stage.submit("c", "interactive"),
            7: release("a.1", "a.2"),
            9: release("c"),
        },
        names=_LENT,
    ),
    "children hand the slots of two parents on": Play(
        acts={
            0: enter(("a", "interactive", gathers()), ("b", "interactive", gathers()), ("c", "interactive", "waits")),
            3: release("a.1", "b.2"),
            5: release("b.1", "c"),
            7: release("a.2"),
        },
        names=(*_LENT, "b.1", "b.2"),
    ),
    "a child outlives its parent in its slot": Play(
        acts={
            0: enter(("a", "interactive", leaves_one_behind), ("b", "batch", "waits"), ("c", "interactive", "waits")),
            3: release("a"),
            6: release("a.1"),
            8: release("b", "c"),
        },
        names=(*NAMES, "a.1"),
    ),
    "a grandchild in another task outlives everybody in the slot": Play(
        acts={
            0: enter(
                ("a", "interactive", calls_inside(leaves_one_behind)),
                ("b", "batch", "waits"),
                ("c", "interactive", "waits"),
            ),
            3: release("a.in"),
            5: release("a"),
            7: release("a.in.1", "b"),
            9: release("c"),
        },
        names=(*_SHARED, "a.in.1"),
    ),
    "a checkpoint gives way": Play(
        acts={
            0: enter(("a", "batch", gives_way), ("b", "batch", "waits"), ("c", "interactive", "waits")),
            1: lambda stage: stage.submit("d", "interactive"),
            3: release("a"),
            6: release("d"),
            8: release("a again"),
            9: release("b", "c"),
        },
        most=3,
        most_batch=2,
        settings=_WIDE,
        names=(*NAMES, "d"),
    ),
    "a checkpoint gives way inside of another call": Play(
        acts={
            0: enter(("a", "batch", calls_inside(gives_way)), ("b", "batch", "waits"), ("c", "interactive", "waits")),
            1: lambda stage: stage.submit("d", "interactive"),
            3: release("a.in"),
            5: release("d"),
            7: release("a.in again", "a"),
            9: release("b", "c"),
        },
        most=3,
        most_batch=2,
        settings=_WIDE,
        names=(*_SHARED, "d"),
    ),
    "the limit falls and children give way": Play(
        acts={
            0: enter(("a", "batch", gathers(gives_way)), ("b", "interactive", "waits")),
            2: configure(batch_max_concurrency=1),
            3: release("a.1", "a.2"),
            6: release("a.1 again"),
            8: release("a.2 again", "b"),
        },
        most=3,
        most_batch=2,
        settings=_WIDE,
        names=("a", "b", "a.1", "a.2"),
    ),
    "slots are released around an await": Play(
        acts={
            0: enter(("a", "interactive", releases), ("b", "batch", releases), ("c", "interactive", "waits")),
            3: release("a", "b"),
            5: release("c"),
            7: release("a again"),
            9: release("b again"),
        },
    ),
    "a slot is released inside of another call": Play(
        acts={
            0: enter(
                ("a", "interactive", calls_inside(releases)), ("b", "batch", "waits"), ("c", "interactive", "waits")
            ),
            3: release("a.in"),
            5: release("c"),
            7: release("a.in again"),
            9: release("a", "b"),
        },
        names=_SHARED,
    ),
    "children release the slot that is lent": Play(
        acts={
            0: enter(("a", "interactive", gathers(releases)), ("b", "batch", "waits"), ("c", "interactive", "waits")),
            4: release("a.1"),
            6: release("a.2", "a.1 again"),
            8: release("a.2 again", "b"),
            10: release("c"),
        },
        names=_LENT,
    ),
    "children of a tenant release the slot that is lent": Play(
        acts={
            0: enter(
                ("a", "interactive", gathers(releases, tenant="x")),
                ("b", "batch", "waits"),
                ("c", "interactive", "waits"),
            ),
            4: release("a.1"),
            6: release("a.2", "a.1 again"),
            8: release("a.2 again", "b"),
            10: release("c"),
        },
        names=_LENT,
    ),
    "calls clean up by a call inside, with a slot and without": Play(
        acts={
            0: enter(
                ("a", "interactive", calls_inside(cleans_up_by_a_call)),
                ("b", "batch", cleans_up_by_a_call),
                ("c", "interactive", "waits"),
            ),
            3: release("a.in", "b"),
            5: release("c"),
            7: release("a.in again", "b again"),
            9: release("a.in.in", "b.in"),
            11: release("a"),
        },
        names=_SHARED,
    ),
    "time without a slot is no time to run": Play(
        acts={
            0: enter(("a", "interactive", calls_inside(releases)), ("b", "batch", releases), run_timeout=0.6),
            4: release("a.in", "b"),
            5: release("a.in again", "b again", "a"),
        },
        seconds=0.25,
        names=("a", "b"),
    ),
    "a parent without a slot has none to lend": Play(
        acts={
            0: enter(
                ("a", "interactive", gathers_while_released), ("b", "batch", "waits"), ("c", "interactive", "waits")
            ),
            3: release("a"),
            5: release("c"),
            7: release("a.1", "b"),
            9: release("a.2"),
        },
        names=_LENT,
    ),
    "a parent's time to run ends around a call inside": Play(
        acts={
            0: enter(("a", "interactive", calls_inside()), ("b", "batch", calls_inside("cleans up")), run_timeout=0.5),
            1: lambda stage: stage.submit("c", "interactive"),
            5: release("a.in", "b.in", "c"),
        },
        seconds=0.25,
        errors=(RunTimeout,),
        names=(*_SHARED, "b.in"),
    ),
    "a parent's time to run ends around its children": Play(
        acts={
            0: enter(("a", "interactive", gathers()), ("b", "batch", leaves_one_behind), run_timeout=0.5),
            1: lambda stage: stage.submit("c", "interactive"),
            5: release("b.1", "c"),
        },
        seconds=0.25,
        errors=(RunTimeout,),
        names=(*_LENT, "b.1"),
    ),
    "a call inside has less time to run than its parent": Play(
        acts={
            0: enter(
                ("a", "interactive", calls_inside(run_timeout=0.5)),
                ("b", "batch", gathers("cleans up", run_timeout=0.5)),
                run_timeout=1.0,
            ),
            1: lambda stage: stage.submit("c", "interactive"),
            3: release("a"),
            5: release("c"),
        },
        seconds=0.25,
        errors=(RunTimeout,),
        names=(*_SHARED, "b.1", "b.2"),
    ),
    "two tenants run one call each": Play(
        acts={
            0: both(
                enter(("a", "interactive", "waits"), ("b", "interactive", "waits"), tenant="x"),
                enter(("c", "interactive", "waits"), ("d", "batch", "waits"), tenant="y"),
            ),
            3: release("a"),
            5: release("c"),
            7: release("b", "d"),
        },
        settings={"max_running_per_tenant": 1},
        names=(*NAMES, "d"),
    ),
    "two tenants run one call each and give it up": Play(
        acts={
            0: both(
                enter(("a", "interactive", releases), ("b", "batch", "waits"), tenant="x"),
                enter(("c", "interactive", gathers()), tenant="y"),
            ),
            3: release("a"),
            5: release("b", "c.1"),
            7: release("a again"),
            9: release("c.2"),
        },
        most=3,
        settings={"max_concurrency": 3, "max_running_per_tenant": 1},
        names=(*NAMES, "c.1", "c.2"),
    ),
    "a block of batch traffic": Play(
        acts={
            0: enter(("a", "interactive", is_batch_traffic), ("b", "batch", "waits"), ("c", "interactive", "waits")),
            3: release("a.in"),
            5: release("b"),
            7: release("a.1", "c"),
        },
        names=(*_SHARED, "a.1"),
    ),
    "the scheduler closes around calls inside": Play(
        acts={
            0: enter(("a", "interactive", calls_inside()), ("b", "batch", gathers()), ("c", "interactive", "waits")),
            2: close(timeout=0.75),
            3: release("a.in"),
        },
        seconds=0.25,
        errors=(CallAborted, SchedulerClosed),
        names=(*_SHARED, "b.1", "b.2"),
    ),
    "the scheduler closes and a child outlives its parent": Play(
        acts={
            0: enter(("a", "interactive", leaves_one_behind), ("b", "batch", gathers()), ("c", "batch", "waits")),
            2: both(close(timeout=1), release("a")),
            4: release("b.1"),
        },
        seconds=0.25,
        errors=(CallAborted, SchedulerClosed),
        names=(*NAMES, "a.1", "b.1", "b.2"),
    ),
    "the scheduler closes while calls have given their slots up": Play(
        acts={
            0: enter(
                ("a", "interactive", calls_inside(releases)), ("b", "batch", releases), ("c", "interactive", "waits")
            ),
            2: close(timeout=0.75),
            3: release("a.in"),
        },
        seconds=0.25,
        errors=(CallAborted, SchedulerClosed),
        names=_SHARED,
    ),
}
