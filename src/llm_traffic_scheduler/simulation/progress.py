"""Whether somebody watches, and what they see while they wait.

Floor: fourth. Loads tqdm only if stderr is a terminal.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(label: str) -> Iterator[Callable[[float], None]]:
    """A function that takes shares of the work, 1 in all, shown on a terminal, silent elsewhere.

    Without tqdm it says once on stderr what to install, and goes on.
    """
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        print("no progress bar without tqdm: pip install 'llm-traffic-scheduler[simulation]'", file=sys.stderr)
        yield lambda step: None
        return
    layout = "{desc} {percentage:3.0f} % |{bar}| {elapsed}, {remaining} to go"
    with tqdm(total=1.0, desc=label, leave=False, bar_format=layout, file=sys.stderr) as bar:

        def step_on(step: float) -> None:
            bar.update(step)

        yield step_on
