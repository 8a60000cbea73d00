"""Small plays for three callers on two slots, in which everything happens that can happen to a call.

`test_cancel_everywhere.py` and `tests/property/test_cancel_each_step.py` perform each of them again and again and
cancel somebody at another moment each time. A new play is one more entry of PLAYS; those with calls inside of calls,
and with calls that give way, are in `nested_plays.py`, those with preempted ones in `preempted_plays.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import pytest

from llm_traffic_scheduler import CallAborted, FixedPolicy, QueueFull, QueueTimeout, RunTimeout, SchedulerClosed
from tests.behaviour.acts import NAMES, Play, arrive, both, close, configure, pause, release, resume
from tests.behaviour.nested_plays import NESTED_PLAYS
from tests.behaviour.preempted_plays import PREEMPTED_PLAYS
from tests.behaviour.stage import Boom, Stage

__all__ = ["PLAYS", "each_play"]


def resume_at_one(stage: Stage) -> None:
    """Interactive calls start again after a second, by a timer that is older than those of later acts."""
    asyncio.get_running_loop().call_later(1.0, stage.scheduler.resume, "interactive")


PLAYS: Final[Mapping[str, Play]] = {
    "an interactive call waits": Play(
        acts={0: arrive("interactive", "batch", "interactive"), 3: release("a"), 6: release("b"), 7: release("c")}
    ),
    "a batch call waits for the batch limit": Play(
        acts={0: arrive("batch", "batch", "interactive"), 2: release("a"), 5: release("c", "b")}
    ),
    "one that came later goes first": Play(
        acts={
            0: arrive("interactive", "interactive", "interactive", priority=1),
            1: lambda stage: stage.submit("d", "interactive", priority=0),
            3: release("a"),
            5: release(*NAMES, "d"),
        }
    ),
    "two wait and are served at once": Play(
        acts={
            0: pause("interactive"),
            1: arrive("interactive", "interactive", "batch"),
            3: resume("interactive"),
            4: release(*NAMES),
        }
    ),
    "batch is paused while its calls run and wait": Play(
        acts={
            0: arrive("batch", "batch", "interactive", queue_timeout=1.5),
            1: both(pause("batch"), release("a")),
            4: resume("batch"),
            5: release(*NAMES),
        },
        seconds=0.25,
        errors=(QueueTimeout,),
    ),
    "everything ends in one pass": Play(acts={0: arrive("interactive", "batch", "batch"), 3: release(*NAMES)}),
    "everything fails": Play(
        acts={0: arrive("interactive", "interactive", "batch", "fails"), 3: release("a"), 5: release("b", "c")},
        errors=(Boom,),
    ),
    "everything fails when it is cancelled": Play(
        acts={
            0: arrive("interactive", "batch", "interactive", "fails when cancelled"),
            3: release("b"),
            5: release(*NAMES),
        },
        errors=(Boom,),
    ),
    "everything returns when it is cancelled": Play(
        acts={
            0: arrive("interactive", "batch", "batch", "returns when cancelled"),
            3: release("a"),
            5: release(*NAMES),
        }
    ),
    "everything cleans up, which takes time": Play(
        acts={0: arrive("interactive", "batch", "interactive", "cleans up"), 2: release("a"), 4: release("b", "c")},
        seconds=0.1,
    ),
    "the cap rises": Play(
        acts={
            0: arrive("interactive", "interactive", "interactive"),
            2: release("c"),
            4: configure(max_concurrency=3),
            5: configure(max_concurrency=2),
            6: release(*NAMES),
        },
        most=3,
    ),
    "the cap falls below what runs, and rises again": Play(
        acts={
            0: both(arrive("interactive", "batch", "interactive"), lambda stage: stage.submit("d", "interactive")),
            2: both(configure(max_concurrency=2), release("a")),
            4: release("b"),
            5: configure(max_concurrency=3),
            6: release(*NAMES, "d"),
        },
        most=3,
        settings={"max_concurrency": 3, "batch_max_concurrency": None},
    ),
    "the batch limit falls and rises": Play(
        acts={
            0: arrive("batch", "batch", "batch"),
            2: both(configure(batch_max_concurrency=1), release("a")),
            4: configure(batch_max_concurrency=2),
            5: configure(policy=FixedPolicy(1)),
            6: release(*NAMES),
        },
        most_batch=2,
        settings={"max_concurrency": 3, "batch_max_concurrency": 2},
    ),
    "the batch limit rises because time passes": Play(
        acts={0: arrive("interactive", "batch", "batch"), 1: release("a"), 7: release(*NAMES)},
        seconds=0.1,
        most=3,
        most_batch=2,
        settings={
            "max_concurrency": 3,
            "batch_max_concurrency": 2,
            "interactive_rps_threshold": 0.1,
            "window": 0.5,
        },
    ),
    "batch starves and goes first": Play(
        acts={0: arrive("interactive", "interactive", "batch"), 2: release("a"), 4: release("c"), 5: release("b")},
        settings={"batch_starvation_timeout": 0},
    ),
    "the queue is full": Play(
        acts={
            0: both(
                arrive("interactive", "interactive", "interactive"), lambda stage: stage.submit("d", "interactive")
            ),
            2: lambda stage: stage.submit("e", "interactive"),
            4: release("a"),
            6: release(*NAMES, "d", "e"),
        },
        errors=(QueueFull,),
        settings={"max_queued_interactive": 1},
    ),
    "calls time out while they wait": Play(
        acts={0: arrive("interactive", "interactive", "batch", queue_timeout=0.5), 4: release(*NAMES)},
        seconds=0.25,
        errors=(QueueTimeout,),
    ),
    "a slot comes free at the instant at which the wait for it ends": Play(
        acts={
            0: arrive("interactive", "interactive", "interactive", queue_timeout=0.5),
            2: release("a"),
            4: release("b", "c"),
        },
        seconds=0.25,
        errors=(QueueTimeout,),
    ),
    "calls time out while they run": Play(
        acts={0: arrive("interactive", "batch", "interactive", run_timeout=0.5), 5: release(*NAMES)},
        seconds=0.25,
        errors=(RunTimeout,),
    ),
    "calls end at the instant of their run timeout": Play(
        acts={0: arrive("interactive", "batch", "interactive", run_timeout=0.5), 2: release("a", "b"), 4: release("c")},
        seconds=0.25,
        errors=(RunTimeout,),
    ),
    "calls clean up after their run timeout": Play(
        acts={0: arrive("interactive", "batch", "interactive", "cleans up", run_timeout=0.5), 5: release(*NAMES)},
        seconds=0.25,
        errors=(RunTimeout,),
    ),
    "calls run on after their run timeout": Play(
        acts={
            0: arrive("interactive", "batch", "interactive", "ignores the first cancel", run_timeout=0.5),
            9: release(*NAMES),
        },
        seconds=0.25,
        errors=(RunTimeout,),
    ),
    "somebody waits until nothing is left": Play(
        acts={
            0: arrive("interactive", "interactive", "batch"),
            1: lambda stage: stage.drain(),
            3: release("a"),
            5: release(*NAMES),
        }
    ),
    "the scheduler closes": Play(
        acts={
            0: arrive("interactive", "interactive", "batch"),
            2: close(timeout=0.5, finish_queued=("batch",)),
            3: release("a"),
        },
        seconds=0.25,
        errors=(CallAborted, SchedulerClosed),
    ),
    "the scheduler closes and everything ends in time": Play(
        acts={
            0: arrive("interactive", "batch", "interactive"),
            2: close(timeout=None),
            3: lambda stage: stage.submit("d", "interactive"),
            4: release("a"),
            6: release(*NAMES),
        },
        errors=(SchedulerClosed,),
    ),
    "the scheduler closes twice while calls clean up": Play(
        acts={
            0: arrive("interactive", "batch", "interactive", "cleans up"),
            2: close(timeout=5),
            3: close("close again", timeout=0.5, finish_queued=()),
        },
        seconds=0.25,
        errors=(CallAborted, SchedulerClosed),
    ),
    "the scheduler closes and leaves a call behind that runs on": Play(
        acts={0: arrive("interactive", "batch", "batch", "ignores the first cancel"), 2: close(timeout=0.5)},
        seconds=0.25,
        errors=(CallAborted, SchedulerClosed),
    ),
    "the scheduler closes while it is paused": Play(
        acts={
            0: pause("interactive"),
            1: arrive("batch", "interactive", "interactive", run_timeout=0.75),
            2: close(timeout=0.5),
            6: resume("interactive"),
        },
        seconds=0.25,
        errors=(CallAborted, RunTimeout, SchedulerClosed),
    ),
    "the scheduler gives up waiting in the pass in which a call gets its slot": Play(
        acts={
            0: both(pause("interactive"), arrive("interactive", "interactive", "batch"), resume_at_one),
            2: close(timeout=0.5),
            5: release(*NAMES),
        },
        seconds=0.25,
        errors=(CallAborted, SchedulerClosed),
    ),
    **NESTED_PLAYS,
    **PREEMPTED_PLAYS,
}
each_play: Final = pytest.mark.parametrize("play", PLAYS.values(), ids=list(PLAYS))
