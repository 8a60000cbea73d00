"""What holds while a policy raises, whoever looks and whenever."""

from __future__ import annotations

from itertools import count

import pytest

from llm_traffic_scheduler import Decision
from llm_traffic_scheduler.core.admission import Limits
from llm_traffic_scheduler.policies.fallback import Fallback
from tests.unit.core.tracing import EveryInstruction

LIMITS = Limits(10, batch_max=8, batch_min=2)
LAST = Decision(5, 0.4)
WINDOW = 10.0


@pytest.fixture
def faults() -> Fallback:
    """Of a policy that has raised at 1.0."""
    faults = Fallback(lambda error: None)
    faults.fault(1.0, ValueError())
    return faults


def test_the_last_decision_holds_for_a_window_from_the_first_fault_and_then_the_lowest_limit(faults: Fallback) -> None:
    faults.fault(9.0, ValueError())

    assert [faults.decision(now, LAST, LIMITS, WINDOW).limit for now in (1.0, 10.9, 11.0)] == [5, 5, 2]


@pytest.mark.parametrize("instruction", range(40))
def test_a_policy_that_answers_again_disturbs_no_reader_in_another_thread(faults: Fallback, instruction: int) -> None:
    looks = count()

    with EveryInstruction(lambda: faults.forgive() if next(looks) == instruction else None):
        decision = faults.decision(2.0, LAST, LIMITS, WINDOW)

    assert decision == Decision(5, 0.4, "policy_failed")
