"""A what-if runs every arm on the same traffic, and its report says what the numbers say."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache

import pytest

from llm_traffic_scheduler import AdaptivePolicy, ConfigError, FixedPolicy, PressurePolicy
from llm_traffic_scheduler.simulation import (
    Agents,
    Answer,
    CallLength,
    FailingFast,
    Hung,
    Question,
    SimpleServer,
    TraceError,
    answer_json,
    answer_text,
    steady,
    what_if,
)
from llm_traffic_scheduler.simulation.what_if_text import answer_remarks

BATCH = [CallLength(1500, 150)]
QUESTION = Question(
    interactive=steady(rate=2.0, span=120.0, seed=1),
    span=120.0,
    batch=BATCH,
    policy=lambda p95: AdaptivePolicy(1.5 * p95),
    target=lambda p95: 1.5 * p95,
    backend=SimpleServer,
    max_concurrency=48,
    batch_max=24,
    backlog=40,
)


@cache
def answered() -> Answer:
    return what_if(QUESTION)


def test_every_arm_gets_the_same_interactive_calls() -> None:
    answer = answered()

    arrivals = [run.arrivals for run in (answer.alone, *answer.arms.values())]
    assert all(each == arrivals[0] for each in arrivals)
    assert len(arrivals) == 6


def test_ours_is_last_after_the_fixed_split_at_its_mean() -> None:
    answer = answered()
    limits = [limit for _, limit in answer.ours.limits]
    mean = round(sum(limits) / len(limits))

    assert list(answer.arms) == [
        "no scheduler",
        "semaphore of 48",
        "priority with fixed split (24)",
        f"fixed split at our mean ({mean})",
        "this scheduler",
    ]


def test_the_target_is_taken_from_the_traffic_without_batch() -> None:
    answer = answered()

    assert answer.target == 1.5 * answer.alone.interactive.p95
    assert answer.policy == repr(AdaptivePolicy(answer.target))
    assert answer.alone.batch == ()


def test_the_policy_keeps_interactive_calls_quick_where_no_scheduler_does_not() -> None:
    answer = answered()

    assert answer.ours.within(answer.target) > 0.85 > 0.75 > answer.arms["no scheduler"].within(answer.target)
    assert answer.cap_kept


def test_a_fault_is_left_out_of_the_pass_without_batch() -> None:
    def hung() -> Hung:
        return Hung(SimpleServer(), start=40, until=80)

    answer = what_if(replace(QUESTION, backend=hung, healthy=SimpleServer))

    assert answer.alone.latencies == answered().alone.latencies
    assert answer.ours.interactive.p95 > 10


def test_agents_are_played() -> None:
    answer = what_if(replace(QUESTION, interactive=Agents(number=10, think=5.0)))

    assert len(answer.arms["no scheduler"].arrivals) < len(answer.alone.arrivals)


def test_the_same_question_has_the_same_answer() -> None:
    assert answer_text(what_if(QUESTION), []) == answer_text(answered(), [])


def test_progress_adds_up_to_the_whole() -> None:
    shares = list[float]()

    what_if(QUESTION, progress=shares.append)

    assert sum(shares) == pytest.approx(1.0)


def test_a_call_that_never_fits_is_refused_before_anything_runs() -> None:
    with pytest.raises(TraceError, match=r"call 1 of the batch lengths: 1650 tokens never fit the simulated backend"):
        what_if(replace(QUESTION, most_tokens=1649))
    with pytest.raises(TraceError, match=r"of the traffic: \d+ tokens never fit the simulated backend \(at most 1700"):
        what_if(replace(QUESTION, most_tokens=1700))


def test_bounds_that_no_scheduler_takes_are_refused_before_anything_runs() -> None:
    ran = list[float]()

    with pytest.raises(ConfigError, match="batch_max_concurrency must be below max_concurrency"):
        what_if(replace(QUESTION, batch_max=48), progress=ran.append)

    assert ran == []


def test_the_report_fits_a_terminal_and_has_every_arm_in_a_row() -> None:
    text = answer_text(answered(), ["Interactive: made up.", "Batch: endless."])

    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    for name in ("no batch at all", *answered().arms):
        assert sum(line.startswith(name + " ") for line in lines) == 1
    assert lines[3:5] == ["Interactive: made up.", "Batch: endless."]
    assert f"AdaptivePolicy(p95_target={answered().target:.3g})" in text


def test_what_failed_or_never_ended_is_said_and_is_a_miss() -> None:
    answer = what_if(replace(QUESTION, backend=lambda: FailingFast(SimpleServer(), start=30), healthy=SimpleServer))

    text = answer_text(answer, [])
    assert answer.ours.failed > 100
    assert f"{answer.ours.failed} failed" in text
    assert "never" in text
    assert answer.ours.within(answer.target) < 0.4


LOST = "more than 5 % of the interactive calls fail or never end"


@pytest.mark.parametrize(
    "ours, unscheduled, alone, said",
    [
        (4.0, 10.0, 2.0, "Against no scheduler: P95 is 2.0 x in place of 5.0 x what it is without batch, and"),
        (4.0, math.inf, 2.0, f"P95 is 2.0 x what it is without batch, where without a scheduler {LOST}, and"),
        (4.0, math.inf, math.inf, f"P95 is 4.0 s, where without a scheduler {LOST}, and"),
        (math.inf, 10.0, 2.0, f": {LOST}, where without a scheduler P95 is 5.0 x what it is without batch, and"),
        (math.inf, 10.0, math.inf, f": {LOST}, where without a scheduler P95 is 10.0 s, and"),
        (math.inf, math.inf, 2.0, f"Against no scheduler: with and without it {LOST}, and"),
        (4.0, 10.0, math.inf, "Against no scheduler: P95 is 4.0 s in place of 10.0 s, and"),
    ],
)
def test_remarks_have_words_for_what_is_infinite(ours: float, unscheduled: float, alone: float, said: str) -> None:
    answer = made_up(ours, unscheduled, alone)

    judged, gain, *others = answer_remarks(answer)
    assert said in gain
    assert judged.startswith(f"With this scheduler {LOST}, so" if ours == math.inf else "Interactive P95 with this")
    assert any(f"Without any batch work {LOST} already" in other for other in others) == (alone == math.inf)
    assert not any(word in " ".join([judged, gain, *others]) for word in ("is never", "inf", " - "))


def made_up(ours: float, unscheduled: float, alone: float) -> Answer:
    """As `answered`, with other latencies; batch gets nothing without a scheduler."""
    answer = answered()
    without = replace(answer.arms["no scheduler"], latencies=(unscheduled,) * 50, batch=())
    arms = {**answer.arms, "no scheduler": without, "this scheduler": replace(answer.ours, latencies=(ours,) * 50)}
    return replace(answer, alone=replace(answer.alone, latencies=(alone,) * 50), arms=arms)


def test_large_multiples_and_latencies_keep_their_columns() -> None:
    row = next(line for line in answer_text(made_up(1234.5, 10.0, 2.0), []).splitlines() if line.startswith("this s"))

    assert row.split()[2:14] == ["1,234", "s"] * 3 + ["617", "x"] * 3
    assert len(row) == 100


def test_batch_calls_that_failed_are_counted_for_each_arm_that_has_some() -> None:
    answer = answered()
    lossy = replace(answer.arms["no scheduler"], batch_failed=1234)
    total = len(lossy.batch) + 1234

    remarks = answer_remarks(replace(answer, arms={**answer.arms, "no scheduler": lossy}))

    said = f"Batch calls that failed, their tokens not counted: 1,234 of {total:,} with no scheduler."
    assert said in remarks
    assert not any("failed" in remark for remark in answer_remarks(answer))


def test_figures_from_a_handful_of_calls_say_so() -> None:
    answer = answered()
    few = replace(answer, arms={**answer.arms, "no scheduler": replace(answer.ours, latencies=(1.0,) * 19)})

    assert answer_remarks(few)[0].startswith("From only 19 interactive calls: below 20")
    assert not any("only" in remark for remark in answer_remarks(answer))


def test_batch_tokens_beside_none_are_no_multiple() -> None:
    remark = answer_remarks(made_up(4.0, 10.0, 2.0))[1]

    assert remark.endswith(f"batch gets {answered().ours.goodput:,.0f} tokens/s in place of none.")


def test_a_target_that_not_even_the_traffic_alone_keeps_is_named() -> None:
    answer = what_if(replace(QUESTION, policy=lambda p95: FixedPolicy(2), target=lambda p95: p95 / 2))

    assert any("no policy keeps" in remark for remark in answer_remarks(answer))
    assert not any("no policy keeps" in remark for remark in answer_remarks(answered()))


def test_traffic_that_is_too_much_by_itself_is_named() -> None:
    question = replace(QUESTION, max_concurrency=4, batch_max=2, policy=lambda p95: FixedPolicy(1))

    assert any("too much for it" in remark for remark in answer_remarks(what_if(question)))
    assert not any("too much for it" in remark for remark in answer_remarks(answered()))


def test_the_json_is_the_report_for_programs() -> None:
    answer = what_if(replace(QUESTION, backend=lambda: FailingFast(SimpleServer(), start=30), healthy=SimpleServer))

    content = json.loads(json.dumps(answer_json(answer, ["source"]), allow_nan=False))

    ours = content["arms"][-1]
    assert (content["sources"], content["policy"], content["target"]) == (["source"], answer.policy, answer.target)
    assert [arm["name"] for arm in content["arms"]] == ["no batch at all", *answer.arms]
    assert ours["interactive"]["p95"] is None
    assert ours["failed"] == answer.ours.failed
    assert ours["within_target"] == answer.ours.within(answer.target)
    assert len(set(map(len, ours["timeline"].values()))) == 1
    assert "batch_limit" not in content["arms"][0]["timeline"]


def test_calls_report_first_tokens_to_the_policy() -> None:
    # Hardly a call ends within 1.5 s; nearly all have their first token by then.
    answer = what_if(replace(QUESTION, policy=lambda p95: AdaptivePolicy(ttft_target=1.5)))

    limits = [limit for _, limit in answer.ours.limits]
    assert answer.ours.first_token.count == len(answer.ours.arrivals)
    assert sum(limits[-100:]) / 100 > 8


def test_a_policy_that_reads_the_window_is_not_asked_for_ever() -> None:
    # Once, a first token that had left the window kept the loop busy without end.
    question = replace(QUESTION, policy=lambda p95: PressurePolicy(p95_threshold=2.5 * p95))

    assert math.isfinite(what_if(question).ours.goodput)
