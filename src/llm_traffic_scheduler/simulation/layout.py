"""How text looks on a terminal of 100 columns: titles, paragraphs, lines of a table, a series as one line of bars.

Floor: fourth. Pure.
"""

import re
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

_WIDTH: Final = 100
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_ASCII: Final = ".:-=+*#@"
_SKETCH_COLUMNS: Final = 48
_FEW: Final = 20  # of fewer calls the nearest rank of 95 % is the last one


def plain(text: str) -> str:
    """The same text in ASCII, for terminals without block characters."""
    return text.translate(str.maketrans(_BLOCKS, _ASCII))


def title(text: str) -> str:
    """`text` underlined, below an empty line."""
    return f"\n{text}\n{'=' * len(text)}"


def paragraph(text: str, first: str = "", hang: int | None = None) -> list[str]:
    """`text` wrapped; the first line begins with `first`, the others are indented as far, or by `hang`."""
    indent = " " * (len(first) if hang is None else hang)
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=indent, break_long_words=False)


def table_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """One line of a table: the first cell to the left, the others to the right; a blank between, however wide."""
    name, *others = cells
    columns = (f" {cell:>{width - 1}}" for cell, width in zip(others, widths[1:], strict=True))
    return f"{name:<{widths[0]}}{''.join(columns)}"


def rounded(text: str) -> str:
    """`text` with its decimal fractions at 3 significant digits; whole numbers stay as they are."""
    return re.sub(r"\d+\.\d+(?:e[+-]?\d+)?", lambda number: _short(float(number[0])), text)


def few_calls(count: int) -> list[str]:
    """What to say of figures that come from `count` interactive calls; nothing where they are enough."""
    if count >= _FEW:
        return []
    calls = f"{count} interactive call{'' if count == 1 else 's'}"
    return [f"From only {calls}: below {_FEW}, P95 is the slowest of them, and a single call decides."]


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def bars(limits: Sequence[tuple[float, int]], low: int, high: int) -> str:
    """How the batch limit moved: the mean of each stretch of time as a bar between `low` and `high`, and in numbers."""
    values = [limit for _, limit in limits]
    columns = min(_SKETCH_COLUMNS, len(values))
    bounds = [round(column * len(values) / columns) for column in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(bounds)]
    drawn = "".join(_BLOCKS[round((mean - low) / max(1, high - low) * (len(_BLOCKS) - 1))] for mean in means)
    seconds = limits[-1][0]
    span = f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    numbers = f"lowest {min(values)}, mean {sum(values) / len(values):.1f}"
    return f"batch limit {low} to {high}  {drawn}  {span}, {numbers}"


def change(value: float, reference: float, more: str, less: str) -> str:
    """By how many per cent `value` differs, with the word for its direction."""
    percent = round(100 * (value / reference - 1)) if reference else 0
    return f"{abs(percent)} % {more if percent > 0 else less}" if percent else "the same"
