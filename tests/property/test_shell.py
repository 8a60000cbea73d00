"""The asyncio shell under arbitrary interleavings of everything that can be done to it.

Keeps promises 3, 6, 8, 11 to 16, 20 to 24 and 33 of SEMANTICS.md, and the caps of 3 and 5, after every step; that a
policy that observes knows who is unfinished; and that the same steps give the same run. Streams: `test_streams.py`.
"""

from __future__ import annotations

from hypothesis.stateful import rule

from tests.property.world_machine import (
    CANCEL,
    FINISH,
    MEET,
    PASS,
    PAUSE,
    RESUME,
    SLEEP,
    SQUEEZE,
    STEER,
    WAYS,
    Machine,
    Step,
    arrive,
    one_of,
)

STEPS = one_of(
    *[arrive(WAYS)] * 4,
    *[SQUEEZE] * 2,
    *[FINISH] * 2,
    *[CANCEL] * 2,
    *[MEET] * 2,
    *[PASS] * 6,
    *[SLEEP] * 2,
    PAUSE,
    *[RESUME] * 2,
    *[STEER] * 2,
)


class Shell(Machine):
    """Calls by `submit` and `slot`."""

    @rule(step=STEPS)
    def step(self, step: Step) -> None:
        self.take(step)


TestShell = Shell.TestCase
