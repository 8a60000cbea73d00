"""What a command line of ours takes: numbers, files to write, pictures; and how it refuses, in one line.

Floor: fourth. Writes nothing; looks whether a file could be written. For the simulation's command and for the examples.
"""

import argparse
import contextlib
import importlib.util
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

__all__ = ["Parser", "above_zero", "missing_matplotlib", "output_file", "picture", "whole"]

_PICTURES: Final = (".png", ".svg", ".pdf")


class Parser(argparse.ArgumentParser):
    """One line for bad input, not a page of usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def above_zero(text: str) -> float:
    """A finite number above 0."""
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"must be a finite number above 0, got {text!r}")


def whole(at_least: int) -> Callable[[str], int]:
    """What reads a whole number from `at_least` up."""

    def read(text: str) -> int:
        with contextlib.suppress(ValueError):
            if (value := int(text)) >= at_least:
                return value
        raise argparse.ArgumentTypeError(f"must be a whole number, at least {at_least}, got {text!r}")

    return read


def output_file(text: str) -> Path:
    """A file that can be written, as far as can be told before the work is done."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"cannot write {text!r}: no such directory, or not a file that may be written")
    return path


def picture(text: str) -> Path:
    """The same with a suffix that matplotlib can draw to."""
    path = output_file(text)
    if path.suffix.lower() not in _PICTURES:
        raise argparse.ArgumentTypeError(f"must end in {', '.join(_PICTURES)}, got {text!r}")
    return path


def missing_matplotlib() -> str | None:
    """What to say to whoever wants a picture, None if one can be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        return "--plot needs matplotlib: pip install 'llm-traffic-scheduler[simulation]'"
    return None
