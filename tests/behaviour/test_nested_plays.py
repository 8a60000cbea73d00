"""The plays of `nested_plays.py` do what their names say: whose slots are used, and who gives way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from tests.behaviour.doors import through_submit
from tests.behaviour.nested_plays import NESTED_PLAYS

# Of each play in which nobody is cancelled: calls in lent slots, children with slots of their own, who gave way.
DONE: Final[Mapping[str, tuple[str, str, str]]] = {
    "a call makes one inside, in its own task": ("a.in b.in", "", ""),
    "two child tasks take turns in the slot that is lent": ("a.1 a.2", "", ""),
    "one child has the slot that is lent, the other gets its own": ("a.1", "a.2", ""),
    "children hand the slots of two parents on": ("a.1 a.2 b.1 b.2", "", ""),
    "a child outlives its parent in its slot": ("a.1", "", ""),
    "a grandchild in another task outlives everybody in the slot": ("a.in a.in.1", "", ""),
    "a checkpoint gives way": ("", "", "a"),
    "a checkpoint gives way inside of another call": ("a.in", "", "a a.in"),
    "the limit falls and children give way": ("a.2", "a.1", "a.1"),
    "slots are released around an await": ("", "", "a b"),
    "a slot is released inside of another call": ("a.in", "", "a a.in"),
    "children release the slot that is lent": ("a.1 a.2", "", "a.1 a.2"),
    "children of a tenant release the slot that is lent": ("a.1 a.2", "", "a.1 a.2"),
    "calls clean up by a call inside, with a slot and without": ("a.in a.in.in b.in", "", "a a.in b"),
    "time without a slot is no time to run": ("a.in", "", "a a.in b"),
    "a parent without a slot has none to lend": ("a.1", "a.2", "a"),
    "a parent's time to run ends around a call inside": ("a.in b.in", "", ""),
    "a parent's time to run ends around its children": ("a.1 b.1", "a.2", ""),
    "a call inside has less time to run than its parent": ("a.in b.1 b.2", "", ""),
    "two tenants run one call each": ("", "", ""),
    "two tenants run one call each and give it up": ("c.1 c.2", "", "a"),
    "a block of batch traffic": ("a.1 a.in", "", ""),
    "the scheduler closes around calls inside": ("a.in b.1", "b.2", ""),
    "the scheduler closes and a child outlives its parent": ("a.1 b.1 b.2", "", ""),
    "the scheduler closes while calls have given their slots up": ("a.in", "", "a a.in b"),
}


@pytest.mark.parametrize("name", NESTED_PLAYS)
async def test_a_play_does_what_its_name_says(name: str) -> None:
    play = NESTED_PLAYS[name]
    stage = play.stage(through_submit)

    await play.perform(stage)

    seen = stage.scheduler.admitted
    lent = " ".join(sorted(child for child, call in seen.items() if call.lent))
    own = " ".join(sorted(child for child, call in seen.items() if not call.lent))
    gave_way = " ".join(sorted(stage.gave_way))
    assert (lent, own, gave_way) == DONE[name]
    await stage.check(play.errors)


# What callers see that others than they themselves have ended.
ENDED: Final[Mapping[str, Mapping[str, str]]] = {
    "a parent's time to run ends around a call inside": {"a": "RunTimeout", "a.in": "CancelledError"},
    "a parent's time to run ends around its children": {"b": "RunTimeout", "b.1": "returned", "a.1": "CancelledError"},
    "a call inside has less time to run than its parent": {"a": "returned", "a.in": "RunTimeout", "b.1": "RunTimeout"},
    "the scheduler closes around calls inside": {"a": "CallAborted", "a.in": "returned", "b.2": "CancelledError"},
    "the scheduler closes and a child outlives its parent": {"a": "returned", "a.1": "CallAborted", "b": "CallAborted"},
    "the scheduler closes while calls have given their slots up": {"a": "CallAborted", "b": "CallAborted"},
}


@pytest.mark.parametrize("name", ENDED)
async def test_a_play_ends_as_its_name_says(name: str) -> None:
    play = NESTED_PLAYS[name]
    stage = play.stage(through_submit)

    await play.perform(stage)

    assert {caller: stage.outcomes[caller] for caller in ENDED[name]} == ENDED[name]
    await stage.check(play.errors)
