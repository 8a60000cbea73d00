"""Calls inside calls, `traffic`, `checkpoint` and `released` under arbitrary interleavings: promises 17 and 19.

After every step each slot is used by one call at a time, the totals add up and never fall, batch work starts batch work
only, and code sees its slot exactly while it has it; whatever was done, everything ends, and no slot is lost or gained.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.property.families import Families, Step, closing, draw_settings, draw_step, drawn, play


@st.composite
def drawn_settings(draw: st.DrawFn) -> dict[str, Any]:
    return draw_settings(lambda options: draw(st.sampled_from(options)))


@st.composite
def drawn_steps(draw: st.DrawFn) -> Step:
    return draw_step(lambda options: draw(st.sampled_from(options)))


@st.composite
def drawn_ends(draw: st.DrawFn) -> tuple[Step, ...]:
    return closing(lambda options: draw(st.sampled_from(options)))


class Programs(RuleBasedStateMachine):
    """Writes each step down, so that the whole run can be repeated."""

    @initialize(settings=drawn_settings(), end=drawn_ends())
    def build(self, settings: dict[str, Any], end: tuple[Step, ...]) -> None:
        self.settings, self.end = settings, end
        self.steps: list[Step] = []
        self.world = Families(settings)
        self.whole = True

    @rule(step=drawn_steps())
    def step(self, step: Step) -> None:
        self.steps.append(step)
        self.whole = False
        self.world.take(step)
        self.whole = True

    def teardown(self) -> None:
        try:
            if self.whole:  # no step has failed
                for step in self.end:
                    self.step(step)
                self.world.finish()
                trace = self.world.trace
                assert play(self.settings, self.steps) == trace, "the same steps gave another run"
        finally:
            self.world.dispose()


TestPrograms = Programs.TestCase


def test_drawn_runs_do_what_they_are_for() -> None:
    """Whatever may become of a call becomes of some: else the programs would prove little."""
    seen = {what for run in range(60) for _, _, what in play(*drawn(f"what is drawn/{run}")) if isinstance(what, str)}
    assert seen >= {
        "began",
        "returned",
        "Boom",
        "CancelledError",
        "RunTimeout",
        "CallAborted",
        "QueueFull",
        "QueueTimeout",
        "SchedulerClosed",
    }
