"""Argument checks of the simulation, one wording for all of them.

Floor: fourth. Guards are written so that NaN fails.
"""

import math

from llm_traffic_scheduler import ConfigError


def above_zero(**values: float) -> None:
    """Each is a finite number above 0, or `ConfigError` with its name."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} must be a finite number above 0, got {value!r}")


def at_least_zero(**values: float) -> None:
    """Each is a finite number of at least 0, or `ConfigError` with its name."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ConfigError(f"{name} must be a finite number, at least 0, got {value!r}")


def at_least_one(**values: int) -> None:
    """Each is a whole number of at least 1, or `ConfigError` with its name."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{name} must be a whole number, at least 1, got {value!r}")


def share(**values: float) -> None:
    """Each is a number above 0 and below 1, or `ConfigError` with its name."""
    for name, value in values.items():
        if not 0 < value < 1:
            raise ConfigError(f"{name} must be above 0 and below 1, got {value!r}")
