"""Whether somebody watches, and what they see while they wait.

Floor: fourth. Loads tqdm only if stderr is a terminal.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TypeAlias

Progress: TypeAlias = Callable[[float], None]
"""Hears which share of all the work has been done since it last heard; the shares add up to 1."""


def unheard(share: float) -> None:
    """The progress of whoever does not want to know."""


@contextlib.contextmanager
def progress_bar(label: str) -> Iterator[Progress]:
    """What to tell, shown on a terminal, silent elsewhere.

    Without tqdm it says once on stderr what to install, and goes on.
    """
    if not sys.stderr.isatty():
        yield unheard
        return
    try:
        from tqdm import tqdm
    except ImportError:
        print("no progress bar without tqdm: pip install 'llm-traffic-scheduler[simulation]'", file=sys.stderr)
        yield unheard
        return
    layout = "{desc} {percentage:3.0f} % |{bar}| {elapsed}, {remaining} to go"
    with tqdm(total=1.0, desc=label, leave=False, bar_format=layout, file=sys.stderr) as bar:

        def step_on(step: float) -> None:
            bar.update(step)

        yield step_on
