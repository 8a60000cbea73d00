"""Made-up traffic: which calls come when, in the shapes that tell control laws apart.

Floor: fourth. Pure but for `Agents.play`, which runs on whatever loop is running.
Method: arrivals are one Poisson process of rate 1 per seed, whose time is stretched by the wanted rate (time change of
a counting process); arrivals and lengths come from streams of their own. So with one seed, call number k has the same
length in every shape and at every rate: common random numbers, with which a comparison of two rates or two laws needs
far fewer seeds.
"""

import asyncio
import itertools
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from llm_traffic_scheduler import ConfigError

from .checks import above_zero, at_least_one, at_least_zero
from .traces import CallLength, RecordedCall

Lengths: TypeAlias = Callable[[random.Random], CallLength] | Sequence[CallLength]
"""Where lengths come from: a function that draws one, or a collection of which any one may be next."""

_MOST_CALLS: Final = 5_000_000  # a rate in the wrong unit would fill the memory instead of failing
_MOST_PERIODS: Final = 100_000
_Z95: Final = 1.6448536269514722  # the 95th percentile of the standard normal distribution
_STEPS_OF_A_DAY: Final = 288
_STEADIEST, _WILDEST = 0.01, 100.0  # cv; beyond them gaps are all alike, or nearly all of them 0


def chat_lengths() -> tuple[CallLength, ...]:
    """Lengths of chat calls, for interactive traffic without a trace: lognormal, prompts and answers independent.

    Source: median and P95 are those of the recorded chat traffic that Azure publishes (Splitwise, ISCA 2024): prompts
    1020 and 4083 tokens, answers 129 and 451. Cut off at 8192 and 2048 tokens, so that every engine here holds them.
    """
    draw = random.Random(2023)  # as `builtin_lengths` for batch: the same lengths in every run
    return tuple(
        CallLength(_lognormal(draw, 1020, 4083, most=8192), _lognormal(draw, 129, 451, most=2048)) for _ in range(4096)
    )


def steady(
    *, rate: float, span: float = 600.0, seed: int = 0, lengths: Lengths | None = None
) -> tuple[RecordedCall, ...]:
    """Poisson arrivals: `rate` calls per second for `span` seconds, each independent of all others."""
    above_zero(rate=rate, span=span)
    return _at_rates([(span, rate)], seed, lengths)


def gamma_gaps(
    *, rate: float, cv: float, span: float = 600.0, seed: int = 0, lengths: Lengths | None = None
) -> tuple[RecordedCall, ...]:
    """Gaps from a gamma distribution: 1 / `rate` seconds on average, standard deviation `cv` times that.

    `cv` 1 is Poisson; recorded clients of LLM services have a median of 1.2 and a tail above 5.
    """
    above_zero(rate=rate, cv=cv, span=span)
    if not _STEADIEST <= cv <= _WILDEST:
        raise ConfigError(f"cv must be {_STEADIEST:g} to {_WILDEST:g}, got {cv!r}")
    _not_too_many(rate * span)
    draw, shape = _stream(seed, "arrivals"), cv**-2
    gaps = (draw.gammavariate(shape, 1 / (shape * rate)) for _ in itertools.count())
    return _calls(itertools.takewhile(lambda time: time < span, itertools.accumulate(gaps)), seed, lengths)


def square(
    *,
    low: float,
    high: float,
    period: float = 30.0,
    span: float = 600.0,
    seed: int = 0,
    lengths: Lengths | None = None,
) -> tuple[RecordedCall, ...]:
    """A square wave: half of each `period` at rate `low`, half at `high`. Resonates with a window of its length."""
    above_zero(high=high, period=period, span=span)
    at_least_zero(low=low)
    return _at_rates(_repeated([(period / 2, low), (period / 2, high)], span), seed, lengths)


def burst(
    *,
    low: float = 0.3,
    high: float = 5.0,
    every: float = 60.0,
    length: float = 15.0,
    span: float = 600.0,
    seed: int = 0,
    lengths: Lengths | None = None,
) -> tuple[RecordedCall, ...]:
    """Calm at rate `low`, and at the end of each `every` seconds `length` seconds at rate `high`, at once."""
    above_zero(high=high, every=every, length=length, span=span)
    at_least_zero(low=low)
    if not length < every:
        raise ConfigError(f"length must be below every ({every:g} s), got {length:g}: bursts need calm between them")
    return _at_rates(_repeated([(every - length, low), (length, high)], span), seed, lengths)


def sparse(
    *, gap: float = 20.0, span: float = 600.0, seed: int = 0, lengths: Lengths | None = None
) -> tuple[RecordedCall, ...]:
    """Lone calls, 0.75 to 1.25 x `gap` seconds apart, uniformly: the window is empty whenever one comes."""
    above_zero(gap=gap, span=span)
    _not_too_many(span / gap)
    draw = _stream(seed, "arrivals")
    gaps = (gap * (0.75 + 0.5 * draw.random()) for _ in itertools.count())
    return _calls(itertools.takewhile(lambda time: time < span, itertools.accumulate(gaps)), seed, lengths)


def diurnal(
    *,
    low: float,
    high: float,
    day: float = 600.0,
    span: float = 600.0,
    seed: int = 0,
    lengths: Lengths | None = None,
) -> tuple[RecordedCall, ...]:
    """Day and night: a rate that goes as a sine from `low` at 0 s to `high` at half a `day` and back."""
    above_zero(high=high, day=day, span=span)
    at_least_zero(low=low)
    middles = ((step + 0.5) / _STEPS_OF_A_DAY for step in range(_STEPS_OF_A_DAY))
    rates = [low + (high - low) * (1 - math.cos(2 * math.pi * middle)) / 2 for middle in middles]
    return _at_rates(_repeated([(day / _STEPS_OF_A_DAY, rate) for rate in rates], span), seed, lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """Closed-loop traffic: each agent calls again only after its last call has ended, and some thinking.

    It cannot be a list of arrivals: a slow backend gets fewer calls. Whoever plays it brings the call:

        async def call(length: CallLength) -> None: ...     # one interactive call, through whatever is tested
        await Agents(number=8, think=2.0).play(call, 600.0)

    `number` agents, each thinking `think` seconds on average (exponential) before every call, also before its first.
    With one seed, call number k of an agent has the same length and the same thinking before it, however slow the
    backend is.
    """

    number: int
    think: float
    seed: int = 0
    lengths: Lengths | None = None

    def __post_init__(self) -> None:
        at_least_one(number=self.number)
        at_least_zero(think=self.think)

    async def play(self, call: Callable[[CallLength], Awaitable[None]], span: float) -> None:
        """Let all agents call for `span` seconds; return once the last call has ended.

        Raises: what `call` raises ends the play, in an `ExceptionGroup`; whoever wants to count failures catches them
        in `call`. Cancellation: all agents, and the calls they wait for, are cancelled.
        """
        above_zero(span=span)
        end = asyncio.get_running_loop().time() + span
        lengths = chat_lengths() if self.lengths is None else self.lengths
        async with asyncio.TaskGroup() as group:
            for number in range(self.number):
                group.create_task(self._play_one(number, lengths, call, end))

    async def _play_one(
        self, number: int, lengths: Lengths, call: Callable[[CallLength], Awaitable[None]], end: float
    ) -> None:
        loop = asyncio.get_running_loop()
        thinking = _stream(self.seed, f"thinking of agent {number}")
        drawn = _draws(lengths, _stream(self.seed, f"lengths of agent {number}"))
        while True:
            pause = thinking.expovariate(1.0) * self.think
            if not loop.time() + pause < end:
                return
            await asyncio.sleep(pause)
            await call(next(drawn))


def _at_rates(pieces: Iterable[tuple[float, float]], seed: int, lengths: Lengths | None) -> tuple[RecordedCall, ...]:
    """Poisson arrivals at piecewise constant rates, given as (seconds, rate)."""
    pieces = list(pieces)
    _not_too_many(sum(seconds * rate for seconds, rate in pieces))
    return _calls(_stretched(pieces, _stream(seed, "arrivals")), seed, lengths)


def _stretched(pieces: Iterable[tuple[float, float]], draw: random.Random) -> Iterator[float]:
    start = passed = 0.0  # time, and expected calls, up to the present piece
    due = draw.expovariate(1.0)
    for seconds, rate in pieces:
        while due < passed + seconds * rate:
            yield start + (due - passed) / rate
            due += draw.expovariate(1.0)
        passed += seconds * rate
        start += seconds


def _repeated(pieces: Sequence[tuple[float, float]], span: float) -> Iterator[tuple[float, float]]:
    period = sum(seconds for seconds, _ in pieces)
    if not span / period <= _MOST_PERIODS:
        raise ConfigError(f"{span:g} s hold too many periods of {period:g} s (at most {_MOST_PERIODS:,})")
    left = span
    for seconds, rate in itertools.cycle(pieces):
        if not left > 1e-9 * span:
            return
        yield min(seconds, left), rate
        left -= seconds


def _calls(arrivals: Iterable[float], seed: int, lengths: Lengths | None) -> tuple[RecordedCall, ...]:
    drawn = _draws(chat_lengths() if lengths is None else lengths, _stream(seed, "lengths"))
    calls = tuple(RecordedCall(time, next(drawn)) for time in arrivals)
    if not calls:
        raise ConfigError("no call comes in this span: raise the rate, or span")
    return calls


def _draws(lengths: Lengths, draw: random.Random) -> Iterator[CallLength]:
    if callable(lengths):
        while True:
            yield lengths(draw)
    if not lengths:
        raise ConfigError("lengths must hold at least one CallLength, got none")
    while True:
        yield lengths[int(draw.random() * len(lengths))]


def _stream(seed: int, name: str) -> random.Random:
    """Random numbers of their own for each purpose; a string is hashed the same way on every machine."""
    return random.Random(f"{seed}: {name}")


def _lognormal(draw: random.Random, median: float, p95: float, *, most: int) -> int:
    return min(most, max(1, round(draw.lognormvariate(math.log(median), math.log(p95 / median) / _Z95))))


def _not_too_many(expected: float) -> None:
    if not expected <= _MOST_CALLS:
        raise ConfigError(
            f"about {expected:,.0f} calls are too many to hold (at most {_MOST_CALLS:,}): rates are per second"
        )
