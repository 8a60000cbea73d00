"""A reader in another thread gets a whole picture: it looks again when the owner has changed something meanwhile."""

from __future__ import annotations

import itertools

import pytest

from llm_traffic_scheduler.views import _steady


def test_a_look_during_which_something_changed_is_taken_again() -> None:
    marks = iter([1, 2, 2, 2])
    looks = itertools.count(1)

    assert _steady(lambda: next(looks), lambda: next(marks)) == 2


def test_a_dict_that_changed_under_the_look_is_looked_at_again() -> None:
    looks = itertools.count(1)

    def look() -> int:
        if (number := next(looks)) < 3:
            raise RuntimeError("dictionary changed size during iteration")
        return number

    assert _steady(look, lambda: None) == 3


def test_where_something_changes_all_the_time_the_last_look_has_to_do() -> None:
    marks, looks = itertools.count(), itertools.count(1)

    assert _steady(lambda: next(looks), lambda: next(marks)) == 101


def test_an_error_of_another_kind_is_nobodys_to_hide() -> None:
    def look() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _steady(look, lambda: None)
