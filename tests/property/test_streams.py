"""Streams under arbitrary interleavings of everything that can be done to them, beside calls, and to the scheduler.

Keeps promise 18 of SEMANTICS.md after every step, with those that `test_shell.py` keeps: a slot from the start of a
stream to its end, and back at once; every stream counted once, as what ended it; no item lost; no warning but for
streams that were dropped.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.property.world_machine import (
    CANCEL,
    FINISH,
    KINDS,
    OPTIONS,
    PASS,
    PAUSE,
    RESUME,
    SLEEP,
    SOON,
    SQUEEZE,
    STEER,
    WHICH,
    Machine,
    Step,
    arrive,
    one_of,
    step,
)

SOURCES = st.sampled_from(
    [
        *["sends"] * 6,
        "gives way",
        "makes calls",
        "swallows cancellation",
        "turns cancellation into an error",
        "is no source",
        "fails as it is opened",
    ]
)
STREAM_OPTIONS = st.builds(
    lambda options, idle: {"idle_timeout": idle, **{name: options[name] for name in options if name != "preemptible"}},
    OPTIONS,
    st.sampled_from([None, 0.5, 1.0, 60.0]),
)


def stream(name: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    """A step that opens some."""
    stream = step(
        name,
        form=st.sampled_from(["generator", "coroutine", "manager"]),
        kind=KINDS,
        way=SOURCES,
        clean_up=st.sampled_from(["is nothing", "is nothing", "takes a pass", "takes long", "fails"]),
        sends=st.integers(0, 3),
        **arguments,
    )
    return st.builds(lambda named, options: (named[0], {**named[1], **options}), stream, STREAM_OPTIONS)


STREAM = stream(
    "stream",
    times=st.sampled_from([1, 1, 1, 2, 4]),
    first=st.sampled_from(["read", "read", "read", "start", "nothing"]),
)
EPISODE = stream(
    "episode",
    roomy=st.sampled_from([True, True, False]),
    read=st.integers(1, 4),
    ends=st.sampled_from(["end", "error", "item", "left", "closed", "idle", "dropped"]),
)
START = step("start", which=WHICH)
READ = step("read", which=WHICH, items=st.sampled_from([1, 2, 100]), block=st.booleans())
FEED = step("feed", which=WHICH, what=st.sampled_from(["item", "item", "item", "end", "error"]), soon=SOON)
ACLOSE = step("aclose", which=WHICH)
LEAVE = step("leave", which=WHICH, soon=SOON)
IDLE = step("idle", which=WHICH)
DROP = step("drop", which=WHICH)
STEPS = one_of(
    *[STREAM] * 2,
    *[EPISODE] * 5,
    START,
    *[READ] * 5,
    *[FEED] * 5,
    ACLOSE,
    *[LEAVE] * 2,
    IDLE,
    DROP,
    arrive(st.sampled_from(["waits", "sleeps", "reads a stream", "reads a stream"])),
    SQUEEZE,
    *[FINISH] * 3,
    CANCEL,
    *[PASS] * 6,
    SLEEP,
    PAUSE,
    *[RESUME] * 3,
    STEER,
)


class Streams(Machine):
    """Streams, and calls beside them."""

    streams = True

    @rule(step=STEPS)
    def step(self, step: Step) -> None:
        self.take(step)


TestStreams = Streams.TestCase
TestStreams.settings = settings(max_examples=settings().max_examples // 4)
