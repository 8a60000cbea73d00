"""The events of a world, replayed: the only view in which each single start can be judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_traffic_scheduler import (
    CallFinished,
    CallQueued,
    CallRejected,
    CallStarted,
    Event,
    FixedPolicy,
    LimitChanged,
)
from tests.property.world_jobs import KINDS, Headroom
from tests.property.world_streams import PREFIX

if TYPE_CHECKING:
    from tests.property.world import World

__all__ = ["Told"]


class Told:
    """A listener. Every call in its world has a label."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.state: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.started = dict.fromkeys(KINDS, 0)

    def __call__(self, event: Event) -> None:
        self.world.trace.append((self.world.loop.time(), "event", event))
        if isinstance(event, LimitChanged):
            assert event.before != event.after
            return
        assert event.label is not None
        before = self.state.get(event.label)
        # A stream that was refused, or whose reader left the queue, may be tried again.
        retried = before == "gone" and event.label.startswith(PREFIX)
        self.kinds[event.label] = event.kind
        if isinstance(event, CallQueued):
            assert before is None or retried
            self.state[event.label] = "queued"
        elif isinstance(event, CallStarted):
            assert before in (None, "queued", "again") or retried
            self._judge(event)
            self.state[event.label] = "running"
            self.started["interactive" if event.kind == "interactive" else "batch"] += before != "again"
        elif isinstance(event, CallFinished):
            assert before in ("running", "again") or (
                before == "queued" and event.outcome == "cancelled" and event.ran == 0.0
            )
            self.state[event.label] = "gone"
        else:
            assert isinstance(event, CallRejected)
            assert before in (None, "queued") or retried
            self.state[event.label] = "gone"

    def may_start_again(self, label: str) -> None:
        """The call's run has ended because it was told to stop; no event tells whether it waits for another now."""
        self.state[label] = "again"

    def number(self, kind: str, state: str) -> int:
        return sum(self.kinds[label] == kind and now == state for label, now in self.state.items())

    def _judge(self, event: CallStarted) -> None:
        """The caps, at the moment of each start."""
        settings = self.world.settings
        batch, interactive = self.number("batch", "running"), self.number("interactive", "running")
        assert batch + interactive < settings["max_concurrency"]
        if event.kind == "interactive":
            return
        limit = settings["batch_max_concurrency"]
        policy = settings["policy"]
        if isinstance(policy, FixedPolicy):
            limit = min(limit, policy.limit)
        elif isinstance(policy, Headroom):
            limit = min(limit, policy.total - interactive - self.number("interactive", "queued"))
        assert batch < max(limit, settings["batch_min_concurrency"])

    def check_complete(self) -> None:
        """Each call that was submitted has been heard of, from its start to its end."""
        assert set(self.state.values()) <= {"gone"}
        assert set(self.state) == {
            *(job.name for job in self.world.jobs if job.submitted and job.outcome),
            *self.world.readers.heard_of(),
        }
        totals = self.world.scheduler.snapshot().totals
        assert {kind: totals[kind].started for kind in KINDS} == self.started
