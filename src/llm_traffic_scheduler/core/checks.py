"""Argument checks at the door, one wording for all of them.

Floor: ground. Guards are written so that NaN fails; a bool is no number here, because
`max_concurrency=True` is a slip and not a 1.
"""

from __future__ import annotations

import math

from ..errors import ConfigError

__all__ = ["count", "number", "seconds", "text_or_none", "timeout"]


def count(name: str, value: object, *, at_least: int = 0) -> int:
    """`value` as a whole number of at least `at_least`, or ConfigError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{name} must be a whole number, got {value!r}")
    if value < at_least:
        raise ConfigError(f"{name} must be at least {at_least}, got {value}")
    return value


def number(name: str, value: object) -> float:
    """`value` as a finite number, or ConfigError."""
    if not math.isfinite(as_float := _as_float(value)):
        raise ConfigError(f"{name} must be a finite number, got {value!r}")
    return as_float


def seconds(name: str, value: object) -> float:
    """`value` as a finite number above 0, or ConfigError."""
    if not 0 < (as_float := _as_float(value)) < math.inf:
        raise ConfigError(f"{name} must be a finite number above 0, got {value!r}")
    return as_float


def timeout(name: str, value: object, *, above_zero: bool = False) -> float:
    """`value` as seconds, infinity for None; ConfigError for anything that is no number."""
    if value is None:
        return math.inf
    if type(value) is float and value > 0:  # the usual case
        return value
    if math.isnan(as_float := _as_float(value)):
        raise ConfigError(f"{name} must be a number of seconds or None, got {value!r}")
    if above_zero and not as_float > 0:
        raise ConfigError(f"{name} must be above 0 seconds, got {value!r}")
    return as_float


def text_or_none(name: str, value: object) -> str | None:
    """`value` as a string or None, or ConfigError."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)  # a subclass may compare, hash and print as it likes
    raise ConfigError(f"{name} must be a string, got {value!r}")


def _as_float(value: object) -> float:
    """`value` as a float; NaN for what is no number, or an int that no float can hold."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan
