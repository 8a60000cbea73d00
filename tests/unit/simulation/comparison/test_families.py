"""The arms that are compared: the same bounds for all, thresholds and targets from the P95 without batch."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest

from llm_traffic_scheduler import AdaptivePolicy, TrafficScheduler
from llm_traffic_scheduler.simulation.comparison import families
from llm_traffic_scheduler.simulation.comparison.families import (
    CURVES,
    LITERAL,
    LITERAL_SWEPT,
    OURS,
    STATIC,
    TARGETS,
    TOTAL,
    Room,
    candidates,
)
from llm_traffic_scheduler.simulation.comparison.study import Plan

ROOM = Room(max_concurrency=96, batch_max=48, batch_min=2)
ALL = candidates()


def schedulers(family: str) -> list[TrafficScheduler]:
    arms = [candidate.build(ROOM, 10.0) for candidate in ALL if candidate.family == family]
    return [arm for arm in arms if isinstance(arm, TrafficScheduler)]


@pytest.mark.parametrize("family", ["fixed total", LITERAL, "AIMD", "scavenger", OURS])
def test_every_law_has_the_same_bounds(family: str) -> None:
    snapshots = [scheduler.snapshot() for scheduler in schedulers(family)]

    bounds = {(seen.max_concurrency, seen.batch_max_concurrency, seen.batch_min_concurrency) for seen in snapshots}
    assert bounds == {(96, 48, 2)}


def test_batch_max_is_swept_up_to_that_of_the_room() -> None:
    maxima = {scheduler.snapshot().batch_max_concurrency for scheduler in schedulers(LITERAL_SWEPT)}

    assert min(maxima) < 8
    assert max(maxima) == 48


def test_targets_are_multiples_of_the_p95_without_batch() -> None:
    told = [candidate.target for candidate in ALL if candidate.family == OURS]
    kept = [candidate.build.args for candidate in ALL if candidate.family == OURS]  # type: ignore[attr-defined]

    assert told == list(TARGETS) == [1.15, 1.25, 1.4, 1.6, 1.8]
    assert kept == [(AdaptivePolicy, target) for target in TARGETS]


def test_the_law_is_told_its_target_in_seconds() -> None:
    told: list[float] = []

    def law(p95_target: float) -> AdaptivePolicy:
        told.append(p95_target)
        return AdaptivePolicy(p95_target=p95_target)

    families._law_on_target(law, 1.4, ROOM, 10.0)

    assert told == pytest.approx([14.0])


def test_thresholds_go_from_three_tenths_to_sixteen_tenths() -> None:
    thresholds = [candidate.target for candidate in ALL if candidate.family == LITERAL]

    assert (thresholds[0], thresholds[-1]) == (0.3, 1.6)


def test_a_thin_sweep_has_the_same_families_with_fewer_settings() -> None:
    every, thin = (Counter(candidate.family for candidate in arms) for arms in (ALL, candidates(thin=True)))

    assert every.keys() == thin.keys()
    assert thin.total() < every.total()


def test_static_splits_are_never_thinned_for_there_is_none_between_two_of_them() -> None:
    every, thin = ([arm.setting for arm in arms if arm.family == STATIC] for arms in (ALL, candidates(thin=True)))

    assert thin == every
    assert every[:20] == [str(limit) for limit in range(1, 21)]


def test_some_families_come_with_ours() -> None:
    assert {arm.family for arm in candidates(families=[STATIC])} == {STATIC, OURS}
    assert {arm.family for arm in Plan(families=(TOTAL,)).arms} == {TOTAL, OURS}


def test_no_two_arms_have_one_name_and_each_family_that_is_swept_is_shown_as_a_curve() -> None:
    names = Counter((candidate.family, candidate.setting) for candidate in ALL)
    swept = {family for family, count in Counter(candidate.family for candidate in ALL).items() if count > 1}

    assert set(names.values()) == {1}
    assert swept == set(CURVES)


def test_every_arm_goes_to_other_processes() -> None:
    for candidate in ALL:
        assert pickle.loads(pickle.dumps(candidate)).setting == candidate.setting
