"""What the seam says of one call."""

from __future__ import annotations

import pytest

from llm_traffic_scheduler import Ended


def test_the_pace_of_a_call_is_that_of_its_tokens_after_the_first() -> None:
    assert Ended(latency=5.0, first_token=1.0, tokens=9).pace == pytest.approx(0.5)


@pytest.mark.parametrize("first_token, tokens", [(None, 9), (1.0, 1), (1.0, 0)])
def test_a_call_that_reports_too_little_has_no_pace(first_token: float | None, tokens: int) -> None:
    assert Ended(latency=5.0, first_token=first_token, tokens=tokens).pace is None
