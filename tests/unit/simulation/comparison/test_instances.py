"""The traffic that laws are compared on: fixed by its seed, alike for all arms."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from llm_traffic_scheduler.simulation.comparison.instances import ENGINES, SHAPES, Instance, shapes_in
from llm_traffic_scheduler.simulation.runner import Workload
from llm_traffic_scheduler.simulation.traces import RecordedCall

MADE_UP = tuple(name for name, shape in SHAPES.items() if shape.trace is None)


def calls(workload: Workload) -> tuple[RecordedCall, ...]:
    assert isinstance(workload.interactive, tuple)
    return workload.interactive


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    rows = [f"{number * 0.5},{100 + number},{10 + number % 5}" for number in range(1201)]
    (tmp_path / "lmsys_arena_vtc.csv").write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")
    return tmp_path


@pytest.mark.parametrize("name", MADE_UP)
def test_one_seed_is_one_workload_and_another_seed_another(name: str) -> None:
    first, again, other = (Instance(name, seed, 120.0).workload(backlog=8) for seed in (3, 3, 4))

    assert (first.interactive, first.batch) == (again.interactive, again.batch)
    assert first.interactive != other.interactive
    assert first.batch != other.batch
    assert sorted(first.batch, key=str) == sorted(other.batch, key=str)


@pytest.mark.parametrize("name", [name for name in MADE_UP if name not in ("agents", "sparse")])
def test_the_h100_gets_four_times_the_traffic(name: str) -> None:
    slow, fast = (calls(Instance(name, 0, 600.0, engine).workload(backlog=8)) for engine in ("A100", "H100"))

    assert len(fast) / len(slow) == pytest.approx(4.0, rel=0.25)
    assert ENGINES["H100"][1] == 4.0


def test_a_batch_job_is_submitted_at_all_times() -> None:
    workload = Instance("steady", 0, 60.0).workload(backlog=77)

    assert (workload.backlog, workload.span) == (77, 60.0)


def test_recorded_traffic_is_cut_into_pieces_spread_over_the_trace(traces: Path) -> None:
    cuts = [Instance("lmsys", seed, 60.0, "A100", traces).workload(backlog=8) for seed in range(5)]

    assert [calls(cut)[0].length.prompt_tokens for cut in cuts] == [100, 460, 820, 1180, 100]
    assert [(calls(cut)[0].arrival, len(calls(cut)), cut.span) for cut in cuts] == [(0.0, 121, 60.0)] * 5
    assert cuts[0].batch != cuts[4].batch


def test_a_trace_shorter_than_the_span_is_taken_whole(traces: Path) -> None:
    workload = Instance("lmsys", 2, 1800.0, "A100", traces).workload(backlog=8)

    assert (workload.span, len(calls(workload))) == (600.0, 1201)
    assert Instance("lmsys", 2, 1800.0, "H100", traces).workload(backlog=8).span == 150.0


def test_shapes_whose_trace_is_not_there_are_known(traces: Path) -> None:
    there, missing = shapes_in(traces)

    assert set(missing) == {"chat"}
    assert set(there) | {"chat"} == set(SHAPES)
    assert set(shapes_in(None)[1]) == {"chat", "lmsys"}


def test_an_instance_goes_to_other_processes() -> None:
    instance = Instance("cv3", 1, 60.0, "H100", Path("somewhere"))

    assert pickle.loads(pickle.dumps(instance)) == instance
    assert pickle.loads(pickle.dumps(instance.workload(backlog=8))).backend().engine == ENGINES["H100"][0]
