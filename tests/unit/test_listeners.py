"""Listeners hear of everything in order, and cannot do harm.

Keeps the second half of promise 32 of SEMANTICS.md.
"""

from __future__ import annotations

import logging

import pytest

from llm_traffic_scheduler import Decision, Event, LimitChanged
from llm_traffic_scheduler.listeners import Listeners
from llm_traffic_scheduler.testing import VirtualTimeLoop


def event(number: int) -> Event:
    return LimitChanged(float(number), number, number + 1, 0.0, "policy")


def tell(listeners: Listeners, *numbers: int) -> None:
    for number in numbers:
        listeners.limit_changed(float(number), Decision(number), Decision(number + 1))
    listeners.flush()


def test_listeners_are_called_in_the_order_in_which_they_were_added() -> None:
    listeners = Listeners("house")
    heard: list[tuple[str, Event]] = []
    for name in "abc":
        listeners.add(lambda event, name=name: heard.append((name, event)))  # type: ignore[misc]

    tell(listeners, 1, 2)

    assert heard == [(name, event(number)) for number in (1, 2) for name in "abc"]


def test_nothing_is_told_before_the_flush() -> None:
    listeners = Listeners("house")
    heard: list[Event] = []
    listeners.add(heard.append)

    listeners.limit_changed(1.0, Decision(1), Decision(2))
    assert heard == []

    listeners.flush()
    assert heard == [event(1)]


def test_what_follows_from_a_callback_is_told_after_the_present_events_and_not_by_recursion() -> None:
    listeners = Listeners("house")
    heard: list[float] = []
    depth = [0, 0]

    def meddle(told: Event) -> None:
        depth[0] += 1
        depth[1] = max(depth)
        heard.append(told.at)
        if told.at < 5000:
            tell(listeners, int(told.at) + 2)
        depth[0] -= 1

    listeners.add(meddle)

    tell(listeners, 1, 2)

    assert heard == list(range(1, 5002))
    assert depth[1] == 1


def test_a_listener_that_raises_does_not_keep_the_others_from_hearing() -> None:
    listeners = Listeners("house")
    heard: list[Event] = []

    def broken(told: Event) -> None:
        raise ValueError("broken")

    listeners.add(broken)
    listeners.add(heard.append)

    tell(listeners, 1, 2)

    assert heard == [event(1), event(2)]
    assert listeners.listener_faults == 2
    assert listeners.policy_faults == 0


def test_each_kind_of_error_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    listeners = Listeners("house")
    errors = [ValueError("a"), ValueError("b"), KeyError("c"), ValueError("d")]

    def broken(told: Event) -> None:
        raise errors[int(told.at)]

    listeners.add(broken)

    tell(listeners, *range(4))
    listeners.policy_fault(errors[3])  # the same kind of error in another place

    logged = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert logged == [errors[0], errors[2], errors[3]]
    assert all("'house'" in record.message for record in caplog.records)
    assert all(record.name == "llm_traffic_scheduler" for record in caplog.records)
    assert (listeners.listener_faults, listeners.policy_faults) == (4, 1)


def test_a_log_handler_that_raises_does_no_harm() -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("disk full")

    def broken(told: Event) -> None:
        raise ValueError

    listeners = Listeners("house")
    listeners.add(broken)
    logger, handler = logging.getLogger("llm_traffic_scheduler"), Broken()
    logger.addHandler(handler)
    try:
        tell(listeners, 1)
    finally:
        logger.removeHandler(handler)

    assert listeners.listener_faults == 1


def test_a_removed_listener_hears_nothing_more() -> None:
    listeners = Listeners("house")
    heard: list[Event] = []
    listeners.add(heard.append)
    tell(listeners, 1)

    listeners.remove(heard.append)
    tell(listeners, 2)

    assert heard == [event(1)]
    assert not listeners.callbacks


def test_one_added_twice_is_called_twice_and_removed_once() -> None:
    listeners = Listeners("house")
    heard: list[Event] = []
    listeners.add(heard.append)
    listeners.add(heard.append)
    tell(listeners, 1)

    listeners.remove(heard.append)
    tell(listeners, 2)

    assert heard == [event(1), event(1), event(2)]


def test_removing_what_was_never_added_is_an_error() -> None:
    with pytest.raises(ValueError, match="not in list"):
        Listeners("house").remove(print)


def test_a_listener_may_take_itself_out_while_it_is_told() -> None:
    listeners = Listeners("house")
    heard: list[str] = []

    def once(told: Event) -> None:
        heard.append("once")
        listeners.remove(once)

    listeners.add(once)
    listeners.add(lambda told: heard.append("always"))

    tell(listeners, 1, 2)

    assert heard == ["once", "always", "always"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_is_meant_for_the_process_goes_on_from_a_loop_callback_of_its_own(error: BaseException) -> None:
    loop = VirtualTimeLoop()
    heard: list[Event] = []
    listeners = Listeners("house")

    def interrupted(told: Event) -> None:
        raise error

    listeners.add(interrupted)
    listeners.add(heard.append)

    loop.call_soon(tell, listeners, 1)
    with pytest.raises(type(error)):
        loop.run_forever()
    loop.close()

    assert heard == [event(1)]
    assert listeners.listener_faults == 1
