"""What a calibration will send, checked and counted before anything is sent.

Floor: third, without asyncio.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from .core.checks import count, number, seconds
from .errors import ConfigError

__all__ = [
    "CallOnce",
    "IsThrottled",
    "Plan",
    "Progress",
    "rates_of",
    "seconds_named",
    "shown",
    "status_429_or_retry_after",
]

CallOnce: TypeAlias = Callable[[], Awaitable[object]]
IsThrottled: TypeAlias = Callable[[Exception], bool | float | None]
Progress: TypeAlias = Callable[[float, str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The arguments of `calibrate`, checked.

    Raises:
        ConfigError: naming the argument, the rule and the value; also where `max_calls` does not suffice.
    """

    call: CallOnce
    rates: tuple[float, ...]
    seconds_per_rate: float
    target_p95: float | None
    is_throttled: IsThrottled
    max_calls: int
    max_unfinished: int
    call_timeout: float
    seed: int

    def __post_init__(self) -> None:
        _check_call(self.call)
        _check_rates(self.rates)
        seconds("seconds_per_rate", self.seconds_per_rate)
        if self.target_p95 is not None:
            seconds("target_p95", self.target_p95)
        if not callable(self.is_throttled) or inspect.iscoroutinefunction(self.is_throttled):
            raise ConfigError(f"is_throttled must be a plain function of the error, got {self.is_throttled!r}")
        count("max_calls", self.max_calls, at_least=2)
        count("max_unfinished", self.max_unfinished, at_least=1)
        seconds("call_timeout", self.call_timeout)
        count("seed", self.seed)
        self._check_budget()

    def calls_at(self, rate: float) -> int:
        """How many calls go out at `rate`, at least one."""
        return max(1, round(min(rate * self.seconds_per_rate, 1e15)))

    @property
    def calls(self) -> int:
        """How many calls go out if nothing stops the calibration early; one is sent alone before the first rate."""
        return 1 + sum(self.calls_at(rate) for rate in self.rates)

    def _check_budget(self) -> None:
        if self.calls <= self.max_calls:
            return
        # Each rate may round up by half a call.
        spare = self.max_calls - 1 - 0.5 * len(self.rates)
        shorter = math.floor(100 * spare / math.fsum(self.rates)) / 100
        or_shorter = f", lower seconds_per_rate to {shorter:g}" if shorter > 0 else ""
        raise ConfigError(
            f"max_calls must be at least {self.calls} for these rates of {self.seconds_per_rate:g} s each, "
            f"got {self.max_calls}: raise it{or_shorter}, or leave out rates; nothing was sent"
        )


def status_429_or_retry_after(error: Exception) -> bool | float | None:
    """Whether the backend asked us to wait, by what HTTP clients call it; the seconds, if it named them.

    Recognised: a number in `error.retry_after`, and status 429 in `error.status`, `error.status_code` or
    `error.response.status_code` (aiohttp, openai, anthropic, httpx), with the seconds of a Retry-After header.
    """
    if (wait := seconds_named(_attribute(error, "retry_after"))) is not None:
        return wait
    response = _attribute(error, "response")
    if 429 not in (_attribute(error, "status"), _attribute(error, "status_code"), _attribute(response, "status_code")):
        return None
    for answer in (error, response):
        get = _attribute(_attribute(answer, "headers"), "get")
        header = get("retry-after") or get("Retry-After") if callable(get) else None
        if isinstance(header, str) and header.isdecimal():
            return float(header)
    return True


@contextmanager
def shown(progress: Progress | bool | None) -> Iterator[Progress]:
    """What to call as the calibration goes on: the user's function, a bar for True, or nothing.

    Raises:
        ConfigError: neither a function nor a bool, or True and tqdm is missing.
    """
    if progress is None or progress is False:
        yield lambda share, text: None
    elif progress is not True:
        if not callable(progress) or inspect.iscoroutinefunction(progress):
            raise ConfigError(f"progress must be True or a plain function of a share and a text, got {progress!r}")
        yield progress
    else:
        with _bar() as tell:
            yield tell


@contextmanager
def _bar() -> Iterator[Progress]:
    try:
        from tqdm import tqdm
    except ImportError:
        raise ConfigError("progress=True needs tqdm: pip install 'llm-traffic-scheduler[simulation]'") from None
    layout = "{percentage:3.0f} % |{bar}| {elapsed} {postfix}"
    # disable=None: no bar where nobody watches.
    with tqdm(total=1.0, leave=False, bar_format=layout, disable=None) as bar:

        def tell(share: float, text: str) -> None:
            bar.set_postfix_str(text, refresh=share == 0)
            bar.update(share - bar.n)

        yield tell


def _check_call(call: object) -> None:
    if inspect.iscoroutine(call):
        name = call.__name__
        call.close()  # or Python warns that it was never awaited
        raise ConfigError(
            f"calibrate() takes a function, got a coroutine object: write calibrate({name}, ...), "
            f"not calibrate({name}(), ...)"
        )
    if inspect.isasyncgenfunction(call):
        raise ConfigError(
            f"call must end with the answer, got the async generator function {call.__qualname__}: "
            "iterate over it in a coroutine function, so that the whole answer is timed"
        )
    if not callable(call):
        raise ConfigError(f"call must be a function without arguments that returns an awaitable, got {call!r}")


def _check_rates(rates: tuple[float, ...]) -> None:
    if not rates:
        raise ConfigError("rates must name at least one rate in calls per second, got none")
    for place, rate in enumerate(rates):
        seconds(f"rates[{place}]", rate)
    for lower, higher in pairwise(rates):
        if not lower < higher:
            raise ConfigError(f"rates must ascend, got {higher:g} after {lower:g}")


def rates_of(rates: object) -> tuple[float, ...]:
    """`rates` as a tuple, unchecked numbers in it."""
    if isinstance(rates, str) or not isinstance(rates, Iterable):
        raise ConfigError(f"rates must be a sequence of calls per second, got {rates!r}")
    return tuple(rates)


def _attribute(thing: object, name: str) -> object:
    try:
        return getattr(thing, name, None)
    except Exception:  # a property of somebody else's error, such as httpx's `request` where there is none
        return None


def seconds_named(value: object) -> float | None:
    """`value` as finite seconds of at least 0; None for anything else, also an int that no float can hold."""
    try:
        as_float = number("retry_after", value)
    except ConfigError:
        return None
    return as_float if as_float >= 0 else None
