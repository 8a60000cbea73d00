"""From what was typed to the question it asks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from llm_traffic_scheduler import ConfigError
from llm_traffic_scheduler.simulation import Agents, BatchingServer, HostedAPI, Hung, Question
from llm_traffic_scheduler.simulation.asking import question_of
from llm_traffic_scheduler.simulation.choices import BACKENDS, FAULTS, POLICIES, SHAPES, Drawn
from llm_traffic_scheduler.simulation.options import parse
from tests.unit.simulation.serving import serve


def asked(*arguments: str) -> tuple[Question, list[str]]:
    return question_of(parse(arguments, "program")[1])


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "monday.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,10\n5,100,10\n10,100,10\n")
    return str(path)


def test_a_trace_spans_its_arrivals(trace: str) -> None:
    question, sources = asked("--trace", trace, "--speed", "0.5", "--p95-target", "3")

    assert question.span == 20.0
    assert sources[0] == "Interactive: monday.csv at speed 0.5: 3 calls in 20 s, 0.15 per second."
    assert sources[2] == "Backend: Llama-3-8B in bf16 on one A100-80G, with continuous batching."


def test_what_is_not_said_is_as_in_a_replay() -> None:
    question, _ = asked("--shape", "steady")

    bounds = (question.max_concurrency, question.batch_max, question.batch_min, question.window, question.backlog)
    assert bounds == (128, 64, 1, 10.0, 256)
    assert isinstance(question.backend(), BatchingServer)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_the_rate_and_span_that_it_is_asked_for(name: str) -> None:
    question, sources = asked("--shape", name, "--rate", "4", "--span", "1200")

    assert question.span == 1200
    assert sources[0].startswith(f"Interactive: {name} (")
    if isinstance(question.interactive, Agents):
        assert question.interactive.number / question.interactive.think == 4
    else:
        assert len(question.interactive) == pytest.approx(4800, rel=0.15)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_a_rate_of_its_own_and_listens_to_the_seed(name: str) -> None:
    _, make = SHAPES[name]

    assert make(Drawn(seed=1)) == make(Drawn(seed=1)) != make(Drawn(seed=2))


def test_gamma_listens_to_cv() -> None:
    _, make = SHAPES["gamma"]

    assert make(Drawn(cv=1.0)) != make(Drawn(cv=5.0))


@pytest.mark.parametrize(
    "arguments, policy, target",
    [
        ([], "AdaptivePolicy(p95_target=6)", 6.0),
        (["--p95-target", "12"], "AdaptivePolicy(p95_target=12)", 12.0),
        (["--policy", "aimd"], "AIMD(p95_target=6, increase=1, decrease=0.5)", 6.0),
        (["--policy", "fixed", "--limit", "7"], "FixedPolicy(7)", 6.0),
        (["--policy", "total", "--limit", "7"], "FixedTotal(7)", 6.0),
        (["--policy", "scavenger", "--p95-target", "5"], "Scavenger(rise=0.5, samples=5)", 5.0),
        (["--policy", "pressure"], "PressurePolicy(rps_threshold=None, p95_threshold=10.0, smoothing=None)", 10.0),
        (
            ["--policy", "pressure", "--p95-threshold", "8"],
            "PressurePolicy(rps_threshold=None, p95_threshold=8.0, smoothing=None)",
            8.0,
        ),
        (
            ["--policy", "pressure", "--rps-threshold", "3", "--p95-target", "9"],
            "PressurePolicy(rps_threshold=3.0, p95_threshold=None, smoothing=None)",
            9.0,
        ),
    ],
)
def test_targets_that_are_not_given_are_taken_from_the_p95_without_batch(
    arguments: list[str], policy: str, target: float
) -> None:
    question, _ = asked("--shape", "steady", *arguments)

    assert repr(question.policy(4.0)) == policy
    assert question.target(4.0) == target


@pytest.mark.parametrize("p95", [0.0, math.inf])
def test_where_there_is_no_p95_a_target_must_be_given(p95: float) -> None:
    with pytest.raises(ConfigError, match="give --p95-target SECONDS"):
        asked("--shape", "steady")[0].policy(p95)
    assert repr(asked("--shape", "steady", "--p95-target", "3")[0].policy(p95)) == "AdaptivePolicy(p95_target=3)"


@pytest.mark.parametrize("name", BACKENDS)
async def test_every_backend_serves_a_call(name: str) -> None:
    question, sources = asked("--shape", "steady", "--backend", name)

    assert sources[2] == f"Backend: {BACKENDS[name].about}."
    assert (await serve(question.backend(), 1000, 100)).error is None


async def test_a_hosted_backend_listens_to_the_seed() -> None:
    backends = [asked("--shape", "steady", "--backend", "hosted", "--seed", seed)[0].backend() for seed in "12"]

    assert all(isinstance(backend, HostedAPI) for backend in backends)
    assert await serve(backends[0]) != await serve(backends[1])


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_around_the_backend_but_not_in_the_first_pass(name: str) -> None:
    question, sources = asked("--shape", "steady", "--fault", f"{name}:100-200")

    assert repr(question.backend()).endswith(f"from 100 s to 200 s, around {BatchingServer()!r}>")
    assert question.healthy is not None
    assert isinstance(question.healthy(), BatchingServer)
    assert sources[3] == f"Fault from 100 s to 200 s, not in the pass without batch: {FAULTS[name][0]}."


def test_a_fault_that_does_not_say_when_holds_for_the_sixth_tenth() -> None:
    backend = asked("--shape", "steady", "--fault", "hung")[0].backend()

    assert isinstance(backend, Hung)
    assert (backend.start, backend.until) == (300.0, 360.0)


def test_a_fault_that_begins_when_the_time_is_over_is_refused(tmp_path: Path) -> None:
    lone = tmp_path / "lone.csv"
    lone.write_text("arrival_s,prompt_tokens,output_tokens\n0,200,1\n")

    with pytest.raises(ConfigError, match=r"^--fault hung begins at 60 s, but the simulated time ends at 60 s: let it"):
        asked("--shape", "steady", "--span", "60", "--fault", "hung:60-360")
    with pytest.raises(ConfigError, match="--fault hung begins at 0 s, but the simulated time ends at 0 s"):
        asked("--trace", str(lone), "--fault", "hung")
    assert asked("--shape", "steady", "--span", "60", "--fault", "hung:59-360")[0].fault == (59.0, 360.0)


def test_every_policy_has_a_name_and_a_sentence() -> None:
    assert list(POLICIES) == ["adaptive", "pressure", "fixed", "total", "aimd", "scavenger"]
    assert all(about for about, _ in POLICIES.values())
