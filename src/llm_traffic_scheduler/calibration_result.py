"""What a calibration found, for people and for the scheduler's constructor.

Floor: third, without asyncio.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypedDict

from .core.load_curve import CalibrationPoint
from .errors import ConfigError

__all__ = ["Calibration", "CalibrationArguments"]

_WIDTH: Final = 100
_COLUMNS: Final = ("calls/s", "achieved", "calls", "failed", "P50", "P95", "P99", "mean unfinished", "most")


class CalibrationArguments(TypedDict):
    """The arguments of `TrafficScheduler` that a calibration measures."""

    max_concurrency: int
    interactive_rps_threshold: float
    interactive_p95_threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What `calibrate` recommends, what it measured, and why it says so.

    A recommended value is None where the measurement does not support one; `reasons` says why, and what to change.

    Attributes:
        interactive_rps_threshold: the highest measured rate, calls per second, below the first at which P95 bent.
        interactive_p95_threshold: P95 in seconds that counts as bent: the target, or twice that at the lowest rate.
        max_concurrency: calls that the backend bore at that rate, bursts included.
        points: the measured curve, by ascending rate; rates that were not reached are not in it.
        reasons: one sentence for each value and for each doubt.
        calls: calls sent in all, the one sent first and alone included.
    """

    interactive_rps_threshold: float | None
    interactive_p95_threshold: float | None
    max_concurrency: int | None
    points: tuple[CalibrationPoint, ...]
    reasons: tuple[str, ...]
    calls: int

    @property
    def complete(self) -> bool:
        """All three values were found."""
        return None not in (self.max_concurrency, self.interactive_rps_threshold, self.interactive_p95_threshold)

    def arguments(self) -> CalibrationArguments:
        """For the constructor: `TrafficScheduler(**result.arguments())`.

        Raises:
            ConfigError: not all three were found. Whoever wants to guess the rest should see that they do.
        """
        cap, rps, p95 = self.max_concurrency, self.interactive_rps_threshold, self.interactive_p95_threshold
        if cap is None or rps is None or p95 is None:
            raise ConfigError(f"the calibration found no {self._missing()}: {'; '.join(self.reasons)}")
        return {"max_concurrency": cap, "interactive_rps_threshold": rps, "interactive_p95_threshold": p95}

    def text(self) -> str:
        """The curve as a table, the recommendation, the reasons; ends without a line break."""
        rows = [_COLUMNS, *(_row(point) for point in self.points)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows if self.points
        ]
        found = [f"{name}={value!r}," for name, value in self._values() if value is not None]
        if self.complete:
            lines += ["", "TrafficScheduler(", *(f"    {each}" for each in found), ")"]
        else:
            lines += ["", *(f"found: {each[:-1]}" for each in found), f"not found: {self._missing()}"]
        lines += ["", *(textwrap.fill(f"- {reason}", _WIDTH, subsequent_indent="  ") for reason in self.reasons)]
        return "\n".join(lines).lstrip("\n")

    def _values(self) -> Iterable[tuple[str, float | None]]:
        yield "max_concurrency", self.max_concurrency
        for name in ("interactive_rps_threshold", "interactive_p95_threshold"):
            value: float | None = getattr(self, name)
            yield name, None if value is None else float(f"{value:.3g}")

    def _missing(self) -> str:
        return ", ".join(name for name, value in self._values() if value is None)


def _row(point: CalibrationPoint) -> tuple[str, ...]:
    quantiles = ("-" if value is None else f"{value:.3g} s" for value in (point.p50, point.p95, point.p99))
    return (
        f"{point.rate:g}",
        f"{point.rate_achieved:.3g}",
        str(point.calls),
        str(point.failures),
        *quantiles,
        f"{point.mean_unfinished:.1f}",
        str(point.max_unfinished),
    )
