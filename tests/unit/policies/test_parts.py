"""What a policy made of other policies does for each of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llm_traffic_scheduler import ConfigError, Decision, FixedPolicy, Shadow, Signals
from llm_traffic_scheduler.policies.parts import check_parts, each


class Plain:
    """A policy with nothing optional; any two are equal, and none can be hashed."""

    def advance(self, now: float, signals: Signals) -> None: ...

    def decide(self, now: float, signals: Signals) -> Decision:
        return Decision(1)

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def test_parts_that_only_compare_equal_are_different_ones() -> None:
    check_parts([("first", Plain()), ("second", Plain())])


def test_the_part_that_brings_in_an_object_again_is_named() -> None:
    law = Plain()
    with pytest.raises(ConfigError, match=r"^second brings in .*Plain.* a second time"):
        check_parts([("first", Shadow(FixedPolicy(1), law)), ("second", Shadow(law))])


def test_each_call_is_made_in_order_whatever_one_of_them_raises() -> None:
    made: list[str] = []

    def call(name: str, error: Exception | None = None) -> Callable[[], None]:
        def made_call() -> None:
            made.append(name)
            if error is not None:
                raise error

        return made_call

    with pytest.raises(KeyError, match="c"):
        each([call("a"), call("b", ValueError()), call("c", KeyError("c")), call("d")])

    assert made == ["a", "b", "c", "d"]
