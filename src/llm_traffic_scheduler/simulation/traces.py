"""Which calls came, when, and how long they were: recorded traffic as CSV.

Floor: fourth. Reads files, decides nothing.
Layouts: the two that public traces of LLM traffic use, told apart by their header:
`TIMESTAMP, ContextTokens, GeneratedTokens` (Azure's public data set) and
`arrival_s, prompt_tokens, output_tokens` with an optional `client`. More columns
do no harm.
"""

import csv
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TypeVar

ColumnsT = TypeVar("ColumnsT", bound=Sequence[str])


class TraceError(ValueError):
    """A trace that cannot be used; the message is one line with file, row, what was expected and what was there."""


@dataclass(frozen=True, slots=True)
class CallLength:
    """How long one call is: tokens of its prompt, tokens of its answer."""

    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of a trace; `arrival` in seconds after the first call of the file."""

    arrival: float
    length: CallLength
    client: str | None = None


@dataclass(frozen=True, slots=True)
class _Layout:
    arrival: str
    prompt: str
    output: str
    clock: Callable[[str], float]
    unit: float

    @property
    def columns(self) -> tuple[str, str, str]:
        return self.arrival, self.prompt, self.output


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TENTHS_OF_A_MICROSECOND: Final = re.compile(r"\.\d{6}(\d)")


def _timestamp(text: str) -> float:
    """ISO 8601 to whole steps of 100 ns: as float seconds since 1970 the last digit would be lost."""
    stamp = datetime.fromisoformat(text)
    if stamp.tzinfo is None:
        stamp = stamp.replace(tzinfo=UTC)
    tenth = _TENTHS_OF_A_MICROSECOND.search(text)
    return (stamp - _EPOCH) // timedelta(microseconds=1) * 10 + int(tenth[1] if tenth else 0)


def _seconds(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


_TRACE_LAYOUTS: Final = (
    _Layout("TIMESTAMP", "ContextTokens", "GeneratedTokens", _timestamp, 1e-7),
    _Layout("arrival_s", "prompt_tokens", "output_tokens", _seconds, 1.0),
)
_LENGTH_COLUMNS: Final = (
    ("num_prefill_tokens", "num_decode_tokens"),
    *((layout.prompt, layout.output) for layout in _TRACE_LAYOUTS),
)


def read_trace(path: str | Path) -> tuple[RecordedCall, ...]:
    """The calls of a recorded trace in order of arrival, at least one.

    Arrivals count from the first row, so that a trace cut out of the middle of a day starts at once.
    Raises: `TraceError` if the file cannot be read, has neither layout or no row, is not sorted by
    arrival, or a value is no number that its column allows.
    """
    rows = _Rows(Path(path))
    choices = {layout.columns: layout for layout in _TRACE_LAYOUTS}
    layout = choices[rows.choose(tuple(choices))]
    calls: list[RecordedCall] = []
    first = previous = -math.inf
    for row in rows:
        arrival = _arrival(rows, row, layout)
        if arrival < previous:
            raise rows.error(f"arrivals must not go back in time: {row[layout.arrival][:40]!r} is before the row above")
        if not calls:
            first = arrival
        previous = arrival
        length = _length(rows, row, layout.prompt, layout.output)
        calls.append(RecordedCall((arrival - first) * layout.unit, length, row.get("client")))
    if not calls:
        raise rows.error("no calls below the header")
    return tuple(calls)


def read_lengths(path: str | Path) -> tuple[CallLength, ...]:
    """The lengths of batch calls in the order of the file, at least one.

    Columns: `num_prefill_tokens, num_decode_tokens`, or those of a trace, whose arrivals are ignored.
    Raises: `TraceError`, as for `read_trace`.
    """
    rows = _Rows(Path(path))
    columns = rows.choose(_LENGTH_COLUMNS)
    prompt, output = columns
    lengths = tuple(_length(rows, row, prompt, output) for row in rows)
    if not lengths:
        raise rows.error("no lengths below the header")
    return lengths


def check_fits(lengths: Iterable[CallLength], where: str, most_tokens: float) -> None:
    """Raise `TraceError` for a call of more than `most_tokens`, prompt and answer; `where` is what they are called."""
    for number, length in enumerate(lengths, 1):
        if not (tokens := length.prompt_tokens + length.output_tokens) <= most_tokens:
            raise TraceError(
                f"call {number} of the {where}: {tokens} tokens never fit the simulated backend"
                f" (at most {most_tokens:.0f} tokens)"
            )


class _Rows:
    """The rows of one CSV file as dictionaries; knows which row it is at, for messages."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._line = 1
        self._lines = self._read()
        self._header = [name.strip() for name in next(self._lines, [])]

    def choose(self, choices: Sequence[ColumnsT]) -> ColumnsT:
        for columns in choices:
            if set(columns) <= set(self._header):
                return columns
        names = textwrap.shorten(", ".join(self._header), 200)
        found = f"unknown columns {names}" if self._header else "empty file"
        expected = " or ".join(", ".join(columns) for columns in choices)
        raise self.error(f"{found}: expected a header with {expected}")

    def __iter__(self) -> Iterator[Mapping[str, str]]:
        for values in self._lines:
            if not values:
                continue
            if len(values) != len(self._header):
                raise self.error(f"expected {len(self._header)} values as in the header, got {len(values)}")
            yield dict(zip(self._header, map(str.strip, values), strict=True))

    def error(self, message: str) -> TraceError:
        return TraceError(f"{self._path}, row {self._line}: {message}")

    def _read(self) -> Iterator[list[str]]:
        try:
            with self._path.open(encoding="utf-8-sig", newline="") as file:
                for values in (reader := csv.reader(file, strict=True)):
                    self._line = reader.line_num
                    yield values
        except OSError as error:
            raise TraceError(f"{self._path}: cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise TraceError(f"{self._path}: not a text file in UTF-8") from error
        except csv.Error as error:
            raise TraceError(f"{self._path}, row {self._line + 1}: not CSV: {error}") from error


def _arrival(rows: _Rows, row: Mapping[str, str], layout: _Layout) -> float:
    text = row[layout.arrival]
    try:
        return layout.clock(text)
    except (ValueError, OverflowError):
        expected = "a finite number of seconds" if layout.clock is _seconds else "a time such as 2023-11-16 18:15:46.68"
        raise rows.error(f"{layout.arrival} must be {expected}, got {text[:40]!r}") from None


def _length(rows: _Rows, row: Mapping[str, str], prompt: str, output: str) -> CallLength:
    return CallLength(_tokens(rows, row, prompt), _tokens(rows, row, output))


def _tokens(rows: _Rows, row: Mapping[str, str], column: str) -> int:
    digits = row[column].removesuffix(".0")  # data frames with a gap somewhere write whole numbers so
    # isdecimal alone lets through digits of other scripts, isascii alone a sign.
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 9):
        raise rows.error(f"{column} must be a whole number from 0 to 999999999, got {row[column][:40]!r}")
    return int(digits)
