"""In every play, whoever is cancelled in whatever pass: who is traffic is heard of as it comes and as it ends, once.

What happens in the plays: `plays.py` and `nested_plays.py`.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from llm_traffic_scheduler import Ended, TrafficScheduler
from tests.behaviour.acts import Play
from tests.behaviour.doors import Door, Job, each_door, through_submit
from tests.behaviour.plays import each_play
from tests.behaviour.stage import Stage
from tests.heard import Heard

# What a policy is told of a call of which the caller has seen this. A call that is refused in the pass in which its
# caller leaves is told of as refused.
TOLD: Final = {
    "returned": {"completed"},
    "Boom": {"failed"},
    "RunTimeout": {"timed_out"},
    "QueueFull": {"rejected"},
    "QueueTimeout": {"rejected"},
    "SchedulerClosed": {"rejected"},
    "CallAborted": {"cancelled"},
    "CancelledError": {"cancelled", "rejected"},
}


def labelled(run: Door) -> Door:
    """The same door, with the name of the caller for a label."""

    async def labels(scheduler: TrafficScheduler, kind: Any, job: Job, *args: Any, **options: Any) -> Any:
        if args:
            options.setdefault("label", args[0])
        return await run(scheduler, kind, job, *args, **options)

    return labels


async def perform(
    play: Play, run: Door, cancel: tuple[str, int] | None = None, **options: Any
) -> tuple[Stage, list[Ended] | None]:
    """Play it with a policy that hears of everything, and decides as the one it takes the place of.

    Returns the ends it has heard of, None if the play has brought a policy of its own.
    """
    stage = play.stage(run, **options)
    heard = Heard(stage.scheduler._policy)
    stage.scheduler.configure(policy=heard)

    def meddle(stage: Stage, step: int, side: int) -> None:
        if cancel is not None and (cancel[1], 1) == (step, side):
            stage.cancel(cancel[0])

    passes = await play.perform(stage, meddle)
    ends = heard.of(Ended) if stage.scheduler._policy is heard else None
    if ends is not None:
        try:
            heard.check()
            assert heard.unfinished == {}
            assert heard.strangers == 0
        except AssertionError as error:
            error.add_note(f"with {cancel} cancelled, of {passes} passes")
            raise
    await stage.check(play.errors)
    return stage, ends


@pytest.mark.asyncio(loop_factories=["virtual", "eager"])
@pytest.mark.parametrize("listens", [False, True], ids=["", "a listener"])
@each_door
@each_play
async def test_each_call_of_a_play_is_heard_of_once_as_it_comes_and_once_as_it_ends(
    run: Door, play: Play, listens: bool
) -> None:
    stage, ends = await perform(play, run, listens=listens)

    traffic = [name for name, kind in stage._kinds.items() if kind == "interactive"]
    assert ends is None or len(ends) <= len(traffic)


@pytest.mark.asyncio(loop_factories=["virtual"])
@each_play
@pytest.mark.slow
async def test_so_it_is_whoever_is_cancelled_in_whatever_pass_and_the_end_told_is_the_one_seen(play: Play) -> None:
    for name in play.names:
        for step in range(30):
            stage, ends = await perform(play, labelled(through_submit), (name, step))
            if ends is not None:
                the_end_told_is_the_one_seen(stage, ends)
            if name in stage.tasks and stage.tasks[name].cancels == 0 and step > 3:
                break


def the_end_told_is_the_one_seen(stage: Stage, ends: list[Ended]) -> None:
    told = {event.call: event.outcome for event in ends}
    # The calls that came in are kept, so their numbers are theirs alone.
    for name, admitted in stage.scheduler.admitted.items():
        outcome = told.pop(id(admitted.call), None)
        if not admitted.call.interactive or admitted.lent:
            assert outcome is None, (name, outcome)
        elif admitted.inside and name not in stage.started:  # it may have got a slot of its own as it left
            assert outcome in (None, "cancelled"), (name, outcome)
        else:
            assert outcome in TOLD[stage.outcomes[name]], (name, outcome, stage.outcomes[name])
    assert set(told.values()) <= {"rejected"}, "others than those that were refused at the door"
