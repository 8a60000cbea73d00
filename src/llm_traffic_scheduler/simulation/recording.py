"""What happened to each call of a run, and how many were at the server at each time.

Floor: fourth. Seconds are counted from the start of the run.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Self

from llm_traffic_scheduler import TrafficScheduler

from .arms import Arm, Kind


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One finished call; `tokens` counts prompt and answer, 0 where the backend knows no tokens."""

    kind: Kind
    arrived: float
    ended: float
    tokens: int = 0

    @property
    def latency(self) -> float:
        """Seconds end to end, from submit to completion."""
        return self.ended - self.arrived


@dataclass(frozen=True, slots=True)
class Steering:
    """What a scheduler says of itself at one instant."""

    batch_limit: int
    pressure: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Calls at the server at one instant, and what the arm's scheduler said, if it has one."""

    time: float
    interactive: int
    batch: int
    steering: Steering | None
    interactive_waiting: int = 0  # submitted and not at the server


@dataclass(frozen=True, slots=True)
class Latency:
    """Nearest-rank quantiles in seconds; 0.0 without calls."""

    count: int
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, latencies: Iterable[float]) -> Self:
        """The quantiles of `latencies`, in any order."""
        ordered = sorted(latencies)
        if not ordered:
            return cls(0, 0.0, 0.0, 0.0)
        p50, p95, p99 = (ordered[math.ceil(len(ordered) * percent / 100) - 1] for percent in (50, 95, 99))
        return cls(len(ordered), p50, p95, p99)


@dataclass(frozen=True, slots=True)
class ArmRun:
    """All that one arm did with the traffic."""

    name: str
    calls: tuple[CallRecord, ...]
    samples: tuple[Sample, ...]
    peak_at_server: int

    def of_kind(self, kind: Kind) -> tuple[CallRecord, ...]:
        """The finished calls of one kind, in order of completion."""
        return tuple(call for call in self.calls if call.kind == kind)

    @property
    def interactive(self) -> Latency:
        """End-to-end latency of all interactive calls."""
        return Latency.of(call.latency for call in self.calls if call.kind == "interactive")

    @property
    def limits(self) -> tuple[tuple[float, int], ...]:
        """(time, batch limit) at each sample; empty for an arm without one that moves."""
        return tuple((sample.time, sample.steering.batch_limit) for sample in self.samples if sample.steering)


def steering_of(arm: Arm) -> Steering | None:
    """What the arm's scheduler says of itself now; None if it has none."""
    if not isinstance(arm, TrafficScheduler):
        return None
    # Reading evaluates the law, so the limit is right even while no batch call asks for it.
    snapshot = arm.snapshot()
    return Steering(snapshot.batch_limit, snapshot.pressure)


class Recorder:
    """Sends calls through one arm and writes down what happens.

    The count of calls at the server is taken here, outside the arm: an arm that broke its cap could not hide it.
    """

    def __init__(self, arm: Arm) -> None:
        self._arm = arm
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self._at_server: Counter[Kind] = Counter()
        self._peak = 0
        self._calls: list[CallRecord] = []
        self._samples: list[Sample] = []

    @property
    def now(self) -> float:
        """Seconds since the start of the run."""
        return self._loop.time() - self._start

    async def sleep_until(self, time: float) -> None:
        """Return at `time`, or at once if it is past."""
        if (seconds := time - self.now) > 0:
            await asyncio.sleep(seconds)

    async def call(self, kind: Kind, serve: Callable[[], Awaitable[None]], tokens: int = 0) -> None:
        """One call through the arm to the server."""
        arrived = self.now
        await self._arm.submit(kind, self._serve, kind, serve)
        self._calls.append(CallRecord(kind, arrived, self.now, tokens))

    async def sample(
        self, *, every: float, until: float = math.inf, tick: Callable[[float], None] = lambda time: None
    ) -> None:
        """Take a sample every so many seconds, the first after half of that; `tick` hears the time of each."""
        # Traffic of round numbers comes and goes at round times; between them there is something to see.
        count = 0
        while (time := (count + 0.5) * every) <= max(until, every):
            await self.sleep_until(time)
            running = self._at_server
            self._samples.append(Sample(self.now, running["interactive"], running["batch"], steering_of(self._arm)))
            tick(self.now)
            # A blocked loop skips samples instead of taking several at one instant.
            count = max(count, int(self.now / every)) + 1

    def result(self, name: str) -> ArmRun:
        """What has been written down so far."""
        return ArmRun(name, tuple(self._calls), tuple(self._samples), self._peak)

    async def _serve(self, kind: Kind, serve: Callable[[], Awaitable[None]]) -> None:
        self._at_server[kind] += 1
        self._peak = max(self._peak, self._at_server.total())
        try:
            await serve()
        finally:
            self._at_server[kind] -= 1
