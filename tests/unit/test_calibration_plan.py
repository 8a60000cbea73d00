"""What calibrate() refuses before anything is sent, what it takes for throttling, and what shows its progress."""

from __future__ import annotations

import io
import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from llm_traffic_scheduler import ConfigError, calibrate
from llm_traffic_scheduler.calibration_plan import shown, status_429_or_retry_after


async def ask() -> None:
    raise AssertionError("something was sent")


async def words() -> Any:
    yield "blue"


async def asks_back(error: Exception) -> bool:
    return True


@pytest.mark.parametrize(
    "options, said",
    [
        ({"rates": []}, "rates must name at least one rate in calls per second, got none"),
        ({"rates": 5}, "rates must be a sequence of calls per second, got 5"),
        ({"rates": "1,2"}, "rates must be a sequence of calls per second, got '1,2'"),
        ({"rates": [1, 2, 2]}, "rates must ascend, got 2 after 2"),
        ({"rates": [2, 1]}, "rates must ascend, got 1 after 2"),
        ({"rates": [0, 1]}, r"rates\[0\] must be a finite number above 0, got 0"),
        ({"rates": [1, math.nan]}, r"rates\[1\] must be a finite number above 0, got nan"),
        ({"rates": [1, math.inf]}, r"rates\[1\] must be a finite number above 0, got inf"),
        ({"rates": [True]}, r"rates\[0\] must be a finite number above 0, got True"),
        ({"rates": ["1"]}, r"rates\[0\] must be a finite number above 0, got '1'"),
        ({"seconds_per_rate": 0}, "seconds_per_rate must be a finite number above 0, got 0"),
        ({"seconds_per_rate": math.nan}, "seconds_per_rate must be a finite number above 0, got nan"),
        ({"target_p95": 0.0}, "target_p95 must be a finite number above 0, got 0.0"),
        ({"target_p95": True}, "target_p95 must be a finite number above 0, got True"),
        ({"is_throttled": 429}, "is_throttled must be a plain function of the error, got 429"),
        ({"is_throttled": asks_back}, "is_throttled must be a plain function of the error, got <function asks_back"),
        ({"max_calls": 1}, "max_calls must be at least 2, got 1"),
        ({"max_calls": 100.0}, "max_calls must be a whole number, got 100.0"),
        ({"max_unfinished": 0}, "max_unfinished must be at least 1, got 0"),
        ({"call_timeout": math.inf}, "call_timeout must be a finite number above 0, got inf"),
        ({"seed": None}, "seed must be a whole number, got None"),
        ({"progress": 3}, "progress must be True or a plain function of a share and a text, got 3"),
        ({"progress": asks_back}, "progress must be True or a plain function of a share and a text"),
    ],
)
async def test_an_impossible_argument_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        await calibrate(ask, **{"rates": [1, 2], "seconds_per_rate": 20.0, **options})


@pytest.mark.parametrize(
    "call, said",
    [
        (None, "call must be a function without arguments that returns an awaitable, got None"),
        (words, "call must end with the answer, got the async generator function words"),
    ],
)
async def test_what_cannot_be_called_is_refused(call: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        await calibrate(call, rates=[1, 2], seconds_per_rate=20.0)


async def test_a_coroutine_object_is_refused_with_what_to_write_and_warns_of_nothing() -> None:
    call: Any = ask()

    with pytest.raises(ConfigError, match=r"write calibrate\(ask, \.\.\.\), not calibrate\(ask\(\), \.\.\.\)"):
        await calibrate(call, rates=[1, 2], seconds_per_rate=20.0)


@pytest.mark.parametrize(
    "rates, budget, said",
    [
        ([1, 2], 50, "must be at least 61 .* got 50: raise it, lower seconds_per_rate to 16, or leave out rates"),
        ([1, 2], 2, "must be at least 61 .* got 2: raise it, or leave out rates"),
        ([1, 1e308], 50, "must be at least 1000000000000021"),
    ],
)
async def test_a_budget_that_does_not_suffice_comes_with_one_that_does(
    rates: list[float], budget: int, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        await calibrate(ask, rates=rates, seconds_per_rate=20.0, max_calls=budget)


class Awkward(Exception):
    @property
    def response(self) -> object:
        raise RuntimeError("there is none")


def error_with(**attributes: object) -> Exception:
    error = Exception("no")
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    "error, answer",
    [
        (ValueError("no"), None),
        (Awkward(), None),
        (error_with(status=500), None),
        (error_with(status=429), True),
        (error_with(status_code=429), True),
        (error_with(response=SimpleNamespace(status_code=429)), True),
        (error_with(response=SimpleNamespace(status_code=429, headers={"retry-after": "7"})), 7.0),
        (error_with(status=429, headers={"Retry-After": "7"}), 7.0),
        (error_with(status=429, headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}), True),
        (error_with(status=503, headers={"Retry-After": "7"}), None),
        (error_with(status_code=429, response=SimpleNamespace(headers={"retry-after": "7"})), 7.0),
        (error_with(retry_after=2), 2.0),
        (error_with(retry_after=0.0), 0.0),
        (error_with(retry_after=None), None),
        (error_with(retry_after=None, status=429), True),
        (error_with(retry_after=True), None),
        (error_with(retry_after=math.nan), None),
    ],
    ids=str,
)
def test_throttling_is_recognised_as_http_clients_show_it(error: Exception, answer: float | None) -> None:
    assert status_429_or_retry_after(error) == answer
    assert type(status_429_or_retry_after(error)) is type(answer)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream, bar", [(Terminal, True), (io.StringIO, False)])
def test_true_is_a_bar_where_somebody_watches(
    stream: type[io.StringIO], bar: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tqdm", reason="needs the extra [simulation]")
    stderr = stream()
    monkeypatch.setattr(sys, "stderr", stderr)

    with shown(True) as tell:
        tell(0.0, "at most 61 calls")
        tell(1.0, "done")

    assert ("at most 61 calls" in stderr.getvalue()) == bar


async def test_a_bar_without_tqdm_is_refused_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)

    with pytest.raises(ConfigError, match=r"needs tqdm: pip install 'llm-traffic-scheduler\[simulation\]'"):
        await calibrate(ask, rates=[1, 2], seconds_per_rate=20.0, progress=True)
