"""Backends, shapes of traffic, policies and faults by name, for whoever types them.

Floor: fourth. Names and their defaults; what they stand for lives elsewhere.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from llm_traffic_scheduler import AdaptivePolicy, FixedPolicy, LimitPolicy, PressurePolicy

from .backend import Backend
from .batching_server import A100, H100, TWO_CORE_CPU, BatchingServer, Engine
from .faults import FailingFast, Hung, Outage, Outlier, Throttling, TimingOut
from .hosted_api import HostedAPI
from .laws import AIMD, FixedTotal, Scavenger
from .shapes import Agents, burst, diurnal, gamma_gaps, sparse, square, steady
from .simple_server import SimpleServer
from .slot_server import TokenSlots
from .traces import RecordedCall

_SLOTS: Final = 32
_TOKENS_PER_MINUTE: Final = 2_000_000
_MAX_TOKENS: Final = 1024


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A backend by name: what it stands for, how one is made from a seed, and the longest call it could ever serve."""

    about: str
    make: Callable[[int], Backend]
    most_tokens: float = math.inf


def _engine(engine: Engine) -> BackendChoice:
    about = f"{engine.name}, with continuous batching"
    return BackendChoice(about, lambda seed: BatchingServer(engine), engine.kv_tokens - 1)


BACKENDS: Final[Mapping[str, BackendChoice]] = {
    "a100": _engine(A100),
    "h100": _engine(H100),
    "cpu": _engine(TWO_CORE_CPU),
    "simple": BackendChoice(
        "an engine in which a step takes a + b * running, and a prompt stalls everybody", lambda seed: SimpleServer()
    ),
    "hosted": BackendChoice(
        f"a hosted API with 256 calls at once and {_TOKENS_PER_MINUTE:,} tokens a minute, of which a call is charged"
        f" its prompt and at least {_MAX_TOKENS}",
        lambda seed: HostedAPI(seed=seed, tokens_per_minute=_TOKENS_PER_MINUTE, max_tokens=_MAX_TOKENS),
        _TOKENS_PER_MINUTE - _MAX_TOKENS,
    ),
    "slots": BackendChoice(f"{_SLOTS} slots, first come first served, 20 ms a token", lambda seed: TokenSlots(_SLOTS)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What made-up traffic is drawn from; `rate` in calls per second on average, None for the shape's own."""

    rate: float | None = None
    span: float = 600.0
    seed: int = 0
    cv: float = 3.0


Traffic = Sequence[RecordedCall] | Agents
_THINK: Final = 10.0


def _steady(drawn: Drawn) -> Traffic:
    return steady(rate=drawn.rate or 2.0, span=drawn.span, seed=drawn.seed)


def _gamma(drawn: Drawn) -> Traffic:
    return gamma_gaps(rate=drawn.rate or 2.0, cv=drawn.cv, span=drawn.span, seed=drawn.seed)


def _square(drawn: Drawn) -> Traffic:
    rate = drawn.rate or 2.0
    return square(low=0.2 * rate, high=1.8 * rate, span=drawn.span, seed=drawn.seed)


def _burst(drawn: Drawn) -> Traffic:
    rate = drawn.rate or 1.5
    return burst(low=0.2 * rate, high=3.4 * rate, span=drawn.span, seed=drawn.seed)


def _sparse(drawn: Drawn) -> Traffic:
    return sparse(gap=1 / (drawn.rate or 0.05), span=drawn.span, seed=drawn.seed)


def _diurnal(drawn: Drawn) -> Traffic:
    rate = drawn.rate or 2.0
    return diurnal(low=0.2 * rate, high=1.8 * rate, day=drawn.span, span=drawn.span, seed=drawn.seed)


def _agents(drawn: Drawn) -> Traffic:
    return Agents(number=max(1, round((drawn.rate or 2.0) * _THINK)), think=_THINK, seed=drawn.seed)


SHAPES: Final[Mapping[str, tuple[str, Callable[[Drawn], Traffic]]]] = {
    "steady": ("Poisson arrivals", _steady),
    "gamma": ("bursty arrivals: gaps from a gamma distribution, see --cv", _gamma),
    "square": ("15 s at 0.2 x the rate, 15 s at 1.8 x, and so on", _square),
    "burst": ("45 s at 0.2 x the rate, 15 s at 3.4 x, and so on", _burst),
    "sparse": ("a lone call now and then", _sparse),
    "diurnal": ("a day in one span: 0.2 x the rate at night, 1.8 x at noon", _diurnal),
    "agents": (f"each calls again {_THINK:g} s after its last answer; at most the rate", _agents),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Aims:
    """What a policy is told, in seconds, calls per second and calls."""

    p95_target: float
    p95_threshold: float | None = None
    rps_threshold: float | None = None
    limit: int = 1


POLICIES: Final[Mapping[str, tuple[str, Callable[[Aims], LimitPolicy]]]] = {
    "adaptive": ("learns how much batch work the target allows", lambda aims: AdaptivePolicy(aims.p95_target)),
    "pressure": (
        "gives way in proportion to latency or arrivals",
        lambda aims: PressurePolicy(aims.rps_threshold, aims.p95_threshold),
    ),
    "fixed": ("always --limit batch calls", lambda aims: FixedPolicy(aims.limit)),
    "total": ("--limit calls of both kinds together", lambda aims: FixedTotal(aims.limit)),
    "aimd": ("up by one per second, down by half on a miss", lambda aims: AIMD(aims.p95_target)),
    "scavenger": ("yields when interactive calls become slower; needs no target", lambda aims: Scavenger()),
}

FAULTS: Final[Mapping[str, tuple[str, Callable[..., Backend]]]] = {
    "hung": ("nothing answers", Hung),
    "timeouts": ("every call ends in a timeout after 30 s", TimingOut),
    "failing": ("every call fails within a millisecond", FailingFast),
    "429": ("every call is refused, without Retry-After", Throttling),
    "retry-after": ("every call is refused, with a Retry-After of 5 s", partial(Throttling, retry_after=5.0)),
    "outlier": ("one call takes 300 s more", Outlier),
    "outage": ("running calls break, new ones are refused", Outage),
}
