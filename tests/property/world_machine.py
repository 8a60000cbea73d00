"""The steps of a world, as hypothesis draws them, and the machine that takes them and repeats the run.

A machine adds one rule, `step`, with the steps that it is about.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from llm_traffic_scheduler import FixedPolicy
from tests.property.world import WAITS, World
from tests.property.world_jobs import Headroom

__all__ = [
    "CANCEL",
    "FINISH",
    "KINDS",
    "MEET",
    "MOMENTS",
    "OPTIONS",
    "PASS",
    "PAUSE",
    "RESUME",
    "SLEEP",
    "SOON",
    "SQUEEZE",
    "STEER",
    "WAYS",
    "WHICH",
    "Machine",
    "Step",
    "arrive",
    "one_of",
    "step",
]

Step: TypeAlias = tuple[str, dict[str, Any]]
# Multiples of 1/4, so that timers meet: a run timeout with a queue deadline, both with a clock step.
MOMENTS = st.sampled_from([0.25, 0.5, 1.0, 2.0])
KINDS = st.sampled_from(["interactive", "batch"])
SOON = st.booleans()
WHICH = st.integers(0, 1000)
WAYS = st.sampled_from(
    [
        *["waits"] * 6,
        "sleeps",
        "streams",
        "is throttled",
        "returns at once",
        "raises before it awaits",
        "returns nothing to await",
        "swallows cancellation",
        "turns cancellation into an error",
    ]
)
OPTIONS = st.fixed_dictionaries(
    {
        "priority": st.sampled_from([-1, 0, 0, 0.5]),
        "queue_timeout": st.sampled_from([None, None, None, 0.5, 1.0, 2.0, 0, -1]),
        "run_timeout": st.sampled_from([None, None, None, None, 0.5, 1.0, 2.0]),
        "observe": st.sampled_from([True, True, False]),
        "preemptible": st.sampled_from([True, False, True]),
        "tenant": st.sampled_from([None, None, None, "red", "blue"]),
    }
)
THRESHOLDS = st.sampled_from([None, 0.5, 2.0])


@st.composite
def bounds(draw: st.DrawFn) -> dict[str, int]:
    cap = draw(st.integers(2, 4))
    batch_max = draw(st.integers(1, cap - 1))
    batch_min = draw(st.integers(1, batch_max))
    return {"max_concurrency": cap, "batch_max_concurrency": batch_max, "batch_min_concurrency": batch_min}


@st.composite
def laws(draw: st.DrawFn) -> dict[str, Any]:
    """A policy, or thresholds, or nothing."""
    none = dict.fromkeys(["policy", "interactive_rps_threshold", "interactive_p95_threshold", "smoothing"])
    law = draw(st.sampled_from(["none", "fixed", "headroom", "thresholds", "thresholds", "thresholds"]))
    if law == "fixed":
        return {**none, "policy": FixedPolicy(draw(st.integers(1, 4)))}
    if law == "headroom":
        return {**none, "policy": Headroom(draw(st.integers(1, 6)))}
    rps, p95 = draw(THRESHOLDS), draw(THRESHOLDS)
    if law == "none" or rps is p95 is None:
        return none
    smoothing = draw(st.sampled_from([None, 1.0]))
    return {**none, "interactive_rps_threshold": rps, "interactive_p95_threshold": p95, "smoothing": smoothing}


def step(name: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    """`do_name` of the world, with these arguments."""
    return st.tuples(st.just(name), st.fixed_dictionaries(arguments))


def change(changes: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Step]:
    return st.builds(lambda soon, changes: ("configure", {"soon": soon, **changes}), SOON, changes)


THE_REST = st.fixed_dictionaries(
    {},
    optional={
        "window": st.sampled_from([1.0, 3.0]),
        "max_queued_interactive": st.sampled_from([None, 0, 2]),
        "max_running_per_tenant": st.sampled_from([None, 1, 2]),
        "max_queued_batch": st.sampled_from([None, 0, 2]),
        "batch_starvation_timeout": st.sampled_from([None, 0.5]),
        "interactive_run_timeout": st.sampled_from([None, 1.0]),
    },
)
SQUEEZE = step(
    "squeeze",
    batch=st.integers(2, 4),
    people=st.integers(1, 4),
    passes=st.sampled_from([1, 2]),
    roomy=st.booleans(),
    way=WAYS,
    lasts=MOMENTS,
    patience=st.sampled_from([None, None, 1.0]),
    scarred=st.booleans(),
    labelled=st.booleans(),
    options=OPTIONS,
)
FINISH = step("finish", which=WHICH, fails=st.booleans(), soon=SOON)
CANCEL = step("cancel", which=WHICH, aim=st.sampled_from(["granted", "told to stop", "any"]), soon=SOON)
MEET = step("meet", what=st.sampled_from(["grant", "run timeout", "queue timeout"]), which=WHICH)
PASS = step("pass", times=st.sampled_from([1, 1, 1, 3]))
PAUSE = step("pause", kind=KINDS, soon=SOON)
RESUME = step("resume", kind=KINDS, soon=SOON)
SLEEP = step("sleep", seconds=st.one_of(MOMENTS, st.floats(0.001, 5.0)))
STEER = st.one_of(
    change(bounds()),
    change(laws()),
    change(THE_REST),
    step("drain"),
)


def arrive(ways: st.SearchStrategy[str]) -> st.SearchStrategy[Step]:
    """Some calls."""
    return step(
        "arrive",
        kind=KINDS,
        way=ways,
        through=st.sampled_from(["submit", "slot"]),
        lasts=MOMENTS,
        patience=st.sampled_from([*[None] * 9, 0.0, 0.5, 1.0]),
        scarred=st.sampled_from([False, False, True]),
        labelled=st.booleans(),
        options=OPTIONS,
        times=st.integers(1, 6),
    )


def one_of(*steps: st.SearchStrategy[Step]) -> st.SearchStrategy[Step]:
    """The next step: any of these, one that is named twice twice as often, as it is not by hypothesis' own `one_of`.

    One rule and not one for each step, because swarm testing would leave out arrivals in half of the runs.
    """
    return st.sampled_from(steps).flatmap(lambda chosen: chosen)


# Once it is closed nothing new comes, so this is only how a run ends.
CLOSING = st.fixed_dictionaries(
    {
        "timeout": st.sampled_from([0.0, 0.5, None]),
        "finish_queued": st.sampled_from([(), ("interactive",), ("batch",), ("interactive", "batch")]),
    }
)


class Machine(RuleBasedStateMachine):
    """Writes each step down, so that the whole run can be repeated.

    Attributes:
        streams: there are some.
    """

    streams = False

    @initialize(
        listening=st.booleans(),
        hearing=st.booleans(),
        lavish=st.sampled_from([True, True, False]),
        bounds=bounds(),
        law=laws(),
        window=st.sampled_from([1.0, 4.0]),
        starvation=st.sampled_from([None, 0.0, 1.0, 30.0]),
        closing=st.one_of(st.none(), CLOSING),
    )
    def build(
        self,
        listening: bool,
        hearing: bool,
        lavish: bool,
        bounds: dict[str, int],
        law: dict[str, Any],
        window: float,
        starvation: float | None,
        closing: dict[str, Any] | None,
    ) -> None:
        self.closing = closing
        self.start: dict[str, Any] = {
            "listening": listening,
            "hearing": hearing,
            "streams": self.streams,
            "lavish": lavish,
            **bounds,
            **law,
            "window": window,
            "batch_starvation_timeout": starvation,
        }
        self.steps: list[Step] = []
        self.world = World(**self.start)
        self.whole = True

    def take(self, step: Step) -> None:
        """The next one."""
        self.steps.append(step)
        self.whole = False
        take(self.world, *step)
        self.whole = True

    def end(self) -> None:
        if self.closing is not None:
            self.take(("close", self.closing))
            self.take(("pass", {"times": 1}))
            self.take(("arrive", {**WAITS, "kind": "batch", "times": 1}))
            self.take(("close", {"timeout": 0.75, "finish_queued": ()}))
            self.take(("sleep", {"seconds": 2.0}))
        self.world.finish()

    def teardown(self) -> None:
        try:
            if self.whole:  # no step has failed
                self.end()
                if self.world.told is not None:  # whose trace holds every event
                    assert repeated(self.start, self.steps) == self.world.trace, "the same steps gave another run"
        finally:
            self.world.dispose()


def take(world: World, name: str, arguments: dict[str, Any]) -> None:
    getattr(world if hasattr(world, f"do_{name}") else world.readers, f"do_{name}")(**arguments)
    world.check()


def repeated(start: dict[str, Any], steps: list[Step]) -> list[tuple[float, object, object]]:
    world = World(**start)
    try:
        for name, arguments in steps:
            take(world, name, arguments)
        world.finish()
        return world.trace
    finally:
        world.dispose()
