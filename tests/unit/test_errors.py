"""Two families of errors, whose fields survive pickling and copying.

Keeps the section on errors of API.md and promise 22 of SEMANTICS.md as far as it is about the values.
"""

from __future__ import annotations

import copy
import pickle

import pytest

from llm_traffic_scheduler import (
    CallAborted,
    ConfigError,
    QueueFull,
    QueueTimeout,
    Rejected,
    RunTimeout,
    SchedulerClosed,
    SchedulerError,
    SchedulerMisuse,
)

REFUSALS = [
    QueueFull("the queue is full", kind="batch", queued=7, limit=7, retry_after=2.5),
    QueueTimeout("no slot", kind="interactive", waited=3.25),
    SchedulerClosed("closed", kind="batch"),
    Rejected("refused", kind="interactive", retry_after=0.0),
]
OTHERS = [RunTimeout("ran too long"), CallAborted("close() ended"), ConfigError("window must be above 0")]


@pytest.mark.parametrize("error", [*REFUSALS, *OTHERS], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("twin", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_type_message_and_fields_survive_pickling_and_copying(error: SchedulerError, twin: object) -> None:
    assert callable(twin)
    again = twin(error)

    assert type(again) is type(error)
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_notes_survive_pickling_too() -> None:
    error = QueueTimeout("no slot", kind="batch", waited=1.0)
    error.add_note("while embedding part 7")

    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while embedding part 7"]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_every_refusal_is_one_type_with_a_kind_and_a_hint_when_to_come_back(error: Rejected) -> None:
    assert isinstance(error, Rejected)
    assert error.kind in ("interactive", "batch")
    assert error.retry_after is None or error.retry_after >= 0


@pytest.mark.parametrize("error", [*REFUSALS, *OTHERS], ids=lambda error: type(error).__name__)
def test_everything_about_a_call_or_a_setting_is_a_scheduler_error(error: SchedulerError) -> None:
    assert isinstance(error, SchedulerError)
    assert not isinstance(error, SchedulerMisuse)


@pytest.mark.parametrize(
    "type_, builtin",
    [
        (QueueTimeout, TimeoutError),
        (RunTimeout, TimeoutError),
        (ConfigError, ValueError),
        (SchedulerMisuse, RuntimeError),
    ],
)
def test_code_that_knows_only_the_builtin_error_catches_ours(type_: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(type_, builtin)


def test_a_run_timeout_is_no_refusal_and_misuse_is_no_scheduler_error() -> None:
    assert not issubclass(RunTimeout, Rejected)
    assert not issubclass(CallAborted, Rejected)
    assert not issubclass(SchedulerMisuse, SchedulerError)
