"""What is done to the scheduler during the soak, one thing after another, at random.

A new one is one more function under `@trouble`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

from llm_traffic_scheduler import (
    CallStarted,
    ConfigError,
    Decision,
    Event,
    FixedPolicy,
    Kind,
    SchedulerSnapshot,
    Signals,
)
from tests.benchmarks.soak_crowd import KINDS, Crowd, Ticket
from tests.property.world_jobs import Headroom

__all__ = ["THRESHOLDS", "TROUBLES", "make_trouble", "trouble"]

Trouble: TypeAlias = Callable[[Crowd], None]
TROUBLES: Final[dict[Trouble, int]] = {}
THRESHOLDS: Final = ("interactive_rps_threshold", "interactive_p95_threshold", "smoothing")
ATTEMPTS: Final = 50  # to look at a moment at which no timer is late


def trouble(weight: int) -> Callable[[Trouble], Trouble]:
    """What may be done; `weight` says how often."""

    def register(act: Trouble) -> Trouble:
        TROUBLES[act] = weight
        return act

    return register


async def make_trouble(crowd: Crowd, on_step: Callable[[], None]) -> None:
    """Until it is over, about twice per pace."""
    acts, weights = list(TROUBLES), list(TROUBLES.values())
    while not crowd.over:
        await asyncio.sleep(crowd.some(0.5))
        act = crowd.chance.choices(acts, weights)[0]
        act(crowd)
        crowd.done[act.__name__] += 1
        on_step()


# Cancels


def _some_of(crowd: Crowd, called: bool | None = None) -> Ticket | None:
    found = [ticket for ticket in crowd.live if called is None or ticket.called == called]
    return crowd.chance.choice(found) if found else None


def _cancel(crowd: Crowd, ticket: Ticket | None, how: str) -> None:
    if ticket is not None:
        ticket.cancel()
        crowd.cancels[how] += 1


@trouble(8)
def cancel_waiting(crowd: Crowd) -> None:
    _cancel(crowd, _some_of(crowd, called=False), "waiting")


@trouble(8)
def cancel_running(crowd: Crowd) -> None:
    _cancel(crowd, _some_of(crowd, called=True), "running")


@trouble(8)
def cancel_twice(crowd: Crowd) -> None:
    """At once, in the next pass, or a moment later."""
    ticket = _some_of(crowd)
    again = partial(_cancel, crowd, ticket, "a second time")
    _cancel(crowd, ticket, "running" if ticket is not None and ticket.called else "waiting")
    crowd.chance.choice((again, partial(crowd.loop.call_soon, again), partial(_after, crowd, 0.2, again)))()


@trouble(4)
def cancel_as_time_runs_out(crowd: Crowd) -> None:
    """At the instant of the call's own queue or run timeout."""
    now = crowd.loop.time()
    due = [(ticket, min(ticket.queue_deadline, ticket.run_deadline)) for ticket in crowd.live]
    ahead = [(ticket, when) for ticket, when in due if now < when < math.inf]
    if ahead:
        ticket, when = crowd.chance.choice(ahead)
        crowd.loop.call_at(when, _cancel, crowd, ticket, "as its time ran out")


@trouble(1)
def cancel_many(crowd: Crowd) -> None:
    for _ in range(20):
        _cancel(crowd, _some_of(crowd), "in a crowd")


# Limits and laws


def _configure(crowd: Crowd, **changes: Any) -> None:
    if "policy" in changes:
        crowd.policy = changes["policy"]
    crowd.scheduler.configure(**changes)
    crowd.bounds_changed()


@trouble(4)
def change_limits(crowd: Crowd) -> None:
    cap = crowd.chance.randint(2, 20)
    batch_max = crowd.chance.choice((None, crowd.chance.randint(1, cap - 1)))
    batch_min = crowd.chance.randint(1, batch_max or max(1, cap * 3 // 4))
    _configure(crowd, max_concurrency=cap, batch_max_concurrency=batch_max, batch_min_concurrency=batch_min)


@trouble(1)
def change_queue_bounds(crowd: Crowd) -> None:
    bounds = (None, None, None, 0, 20)
    _configure(
        crowd,
        max_queued_interactive=crowd.chance.choice(bounds),
        max_queued_batch=crowd.chance.choice(bounds),
    )


@trouble(2)
def change_the_bound_on_tenants(crowd: Crowd) -> None:
    _configure(crowd, max_running_per_tenant=crowd.chance.choice((None, None, 1, 3, 6)))


@trouble(1)
def change_timeouts(crowd: Crowd) -> None:
    def some(*paces: float) -> float | None:
        chosen = crowd.chance.choice((None, *paces))
        return None if chosen is None else chosen * crowd.pace

    _configure(
        crowd,
        interactive_queue_timeout=some(2, 20),
        batch_queue_timeout=some(5, 50),
        interactive_run_timeout=some(1, 5),
        batch_run_timeout=some(1, 5),
        batch_starvation_timeout=some(0, 10),
    )


@trouble(2)
def change_thresholds(crowd: Crowd) -> None:
    choice, pace = crowd.chance.choice, crowd.pace
    rps, p95 = choice((None, 5 / pace, 20 / pace)), choice((None, pace, 5 * pace))
    smoothing = None if rps is p95 is None else choice((None, 2 * pace))
    _configure(crowd, policy=None, interactive_rps_threshold=rps, interactive_p95_threshold=p95, smoothing=smoothing)


@trouble(1)
def change_the_window(crowd: Crowd) -> None:
    _configure(crowd, window=crowd.chance.choice((2, 20, 60)) * crowd.pace)


class Faulty:
    """A law that breaks."""

    def advance(self, now: float, signals: Signals) -> None:
        """It learns nothing."""

    def decide(self, now: float, signals: Signals) -> Decision:
        raise ZeroDivisionError


@trouble(2)
def change_the_policy(crowd: Crowd) -> None:
    some = crowd.chance.randint
    policy = crowd.chance.choice((FixedPolicy(some(1, 10)), Headroom(some(1, 20)), Faulty()))
    _configure(crowd, policy=policy, **dict.fromkeys(THRESHOLDS))


@trouble(1)
def ask_for_the_impossible(crowd: Crowd) -> None:
    before = crowd.scheduler.snapshot()
    try:
        crowd.scheduler.configure(max_concurrency=before.max_concurrency + 1, window=-1.0)
    except ConfigError:
        after = crowd.scheduler.snapshot()
        crowd.expect(before.max_concurrency == after.max_concurrency, "a refused change has changed the cap")
    else:
        crowd.blame("a window below zero was taken")


# Pauses and the load


def _after(crowd: Crowd, paces: float, act: Callable[[], object]) -> None:
    """Later, after so many paces on average."""
    crowd.loop.call_later(crowd.some(paces), act)


@trouble(2)
def pause_and_resume(crowd: Crowd) -> None:
    kind: Kind = crowd.chance.choice(KINDS)
    crowd.scheduler.pause(kind)
    _after(crowd, 3, partial(crowd.scheduler.resume, kind))


@trouble(1)
def change_the_load(crowd: Crowd) -> None:
    """A rush of interactive calls, the usual, or a lull in both kinds."""
    crowd.thinking.update(crowd.chance.choice(LOADS))


LOADS: Final[tuple[dict[str, float], ...]] = (
    {"interactive": 0.3, "batch": 0.1},
    {"interactive": 1.0, "batch": 0.1},
    {"interactive": 3.0, "batch": 0.1},
    {"interactive": 50.0, "batch": 0.1},
    {"interactive": 200.0, "batch": 200.0},
)


@trouble(1)
def wait_until_idle(crowd: Crowd) -> None:
    """It may give up before."""
    drain = crowd.loop.create_task(crowd.scheduler.drain())
    _after(crowd, 10, drain.cancel)


# Listeners and looks


class Judge:
    """A listener that looks at the caps at each single start: events are told before anything else can change."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd

    def __call__(self, event: Event) -> None:
        if isinstance(event, CallStarted):
            now = self._crowd.scheduler.snapshot()
            self._crowd.expect(now.running <= now.max_concurrency, "a start above the cap", now)
            if event.kind == "batch":
                limit = max(now.batch_min_concurrency, min(now.batch_max_concurrency, self._limit(now)))
                self._crowd.expect(now.batch_running <= limit, "a start above the batch limit", limit, now)

    def _limit(self, now: SchedulerSnapshot) -> int:
        policy = self._crowd.policy
        if isinstance(policy, FixedPolicy):
            return policy.limit
        if isinstance(policy, Headroom):
            # What the policy is told: without those that have released their slots, with those inside of others.
            running, queued, _, _ = self._crowd.scheduler._home.admission.counts
            return policy.total - running - queued
        return now.batch_max_concurrency


def fail_on_event(event: Event) -> None:
    """A listener that breaks."""
    raise ZeroDivisionError


@trouble(2)
def listen_for_a_while(crowd: Crowd) -> None:
    listener = crowd.chance.choice((Judge(crowd), Judge(crowd), fail_on_event))
    crowd.scheduler.add_listener(listener)
    _after(crowd, 5, partial(crowd.scheduler.remove_listener, listener))


@trouble(4)
def look(crowd: Crowd) -> None:
    """On a real loop a timer may be late when we look; then once more in the next pass."""
    crowd.scheduler.explain()
    _look(crowd, ATTEMPTS)


def _look(crowd: Crowd, attempts: int) -> None:
    if crowd.check():
        crowd.done["looks at everything"] += 1
    elif attempts:
        crowd.loop.call_soon(_look, crowd, attempts - 1)
    elif not crowd.over:
        crowd.blame("check", "never whole")
