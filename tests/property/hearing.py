"""A policy in a world of hypothesis that hears of every call, and what it must know after each step."""

from __future__ import annotations

from typing import Any

from llm_traffic_scheduler import LimitPolicy, TrafficScheduler
from llm_traffic_scheduler.call import Call
from llm_traffic_scheduler.core.admission import LENT_ON
from tests.heard import Heard

__all__ = ["Hearing"]


class Hearing:
    """Puts itself around the policies of a scheduler; does nothing where it has thresholds, or nothing.

    `streams`: some of the calls are.
    """

    def __init__(self, *, streams: bool = False) -> None:
        self._streams = streams
        self.scheduler: TrafficScheduler | None = None
        self._heard: Heard | None = None
        self._before: list[Call] = []  # kept, so that no other call gets their numbers

    def around(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The same settings, or changes of some, with a policy that hears of calls in place of one that does not."""
        law: LimitPolicy | None = settings.get("policy")
        if law is None:
            return settings
        self._before = self._unfinished()
        self._heard = Heard(law, streams=self._streams)
        return {**settings, "policy": self._heard}

    def _unfinished(self) -> list[Call]:
        """Who is traffic and has not ended, by the scheduler's own records."""
        if self.scheduler is None:
            return []
        calls = self.scheduler._home.admission.calls()
        return [call for call in calls if call.interactive and _observed(call) and call.state != LENT_ON]

    def check(self) -> None:
        """It knows of each call that is traffic and has not ended, and of no other."""
        heard = self._heard
        if self.scheduler is None or heard is None or self.scheduler._policy is not heard:
            return
        heard.check()
        unheard_of = {id(call) for call in self._before}
        assert heard.unfinished.keys() == {id(call) for call in self._unfinished()} - unheard_of

    def check_end(self) -> None:
        """So it is, and nobody is left."""
        self.check()
        assert self._unfinished() == []


def _observed(call: Call) -> bool:
    """A stream's age is no news between two items."""
    stream = None if call.extras is None else call.extras.stream
    return call.observed or (stream is not None and stream._left_at is not None and stream._observed)
