"""Everything at once, for long: is anything lost, does memory grow?

    python tests/benchmarks/soak.py           an hour of virtual time, five minutes of real time, 10^6 calls for memory
    python tests/benchmarks/soak.py --quick   for CI: 20 seconds in all

Clients of both kinds and of five tenants keep the scheduler full, by every door, in real time also from threads, with
calls that return, fail, clean up, hang, run on after they were cancelled, make calls inside, and give their slots up
for a while. Meanwhile somebody cancels them, waiting, running, as they get their slot,
twice; changes limits, laws and timeouts; pauses and resumes; listens; lets the load rise and fall (soak_trouble.py).
Every call is accounted for (soak_crowd.py). At the end nothing may be left, and exactly as many calls as ever fit in.

Exit status 1 if anything was lost or memory grew. The virtual part is the same for the same seed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import platform
import random
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from llm_traffic_scheduler import CloseReport, FixedPolicy, SchedulerClosed, TrafficScheduler
from llm_traffic_scheduler.simulation.progress import progress_bar
from llm_traffic_scheduler.testing import VirtualTimeLoop, run_virtual
from tests.behaviour.doors import assert_whole
from tests.benchmarks.contestants import one_yield, power, reach
from tests.benchmarks.soak_crowd import KINDS, Crowd
from tests.benchmarks.soak_threads import thread_clients
from tests.benchmarks.soak_trouble import THRESHOLDS, make_trouble
from tests.ledger import assert_accounted
from tests.support import hold, noop, settle
from tests.watched import tenants_remembered

BOUNDS: Final = ("max_queued_interactive", "max_queued_batch", "max_running_per_tenant")
# What a call takes on average, in seconds.
VIRTUAL_PACE: Final = 0.5
REAL_PACE: Final = 0.005
# Paces after the end in which everybody must have settled, and then in which every change must have been undone.
PATIENCE: Final = 200
MOST_GROWTH: Final = 1.05
FEW_CALLS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Effort:
    """Seconds of virtual and of real time, and calls for memory."""

    virtual: float
    real: float
    calls: int


FULL: Final = Effort(3_600, 300, 1_000_000)
QUICK: Final = Effort(300, 5, 100_000)


async def soak(seconds: float, pace: float, seed: int, step_on: Callable[[float], None]) -> Crowd:
    """Let the crowd run for so long, then look at what is left."""
    crowd = Crowd(pace, random.Random(seed))
    loop, last = crowd.loop, crowd.loop.time()
    await crowd.scheduler.drain()  # threads may only turn to a scheduler that knows its loop
    crew = crowd.clients()
    threads = [] if isinstance(loop, VirtualTimeLoop) else thread_clients(crowd)

    def show() -> None:
        nonlocal last
        now = loop.time()
        step_on((now - last) / seconds)
        last = now

    trouble = asyncio.create_task(make_trouble(crowd, show))
    await asyncio.sleep(seconds)
    crowd.over = True
    await asyncio.wait([trouble])
    if trouble.exception() is not None:
        crowd.blame("somebody who made trouble met", repr(trouble.exception()))
    try:
        await _see_the_end(crowd, crew, threads)
    except AssertionError as error:
        crowd.blame("at the end", repr(error))
    return crowd


async def _see_the_end(crowd: Crowd, crew: list[asyncio.Task[None]], threads: list[asyncio.Task[None]]) -> None:
    patience = crowd.loop.time() + PATIENCE * crowd.pace
    while left := [*(ticket.task for ticket in crowd.live), *(task for task in threads if not task.done())]:
        assert crowd.loop.time() < patience, f"{len(left)} calls are not settled: {crowd.scheduler!r}"
        await asyncio.wait(left, timeout=PATIENCE * crowd.pace)  # they may make others
    assert not crowd.schedulers_timers(), crowd.schedulers_timers()
    for client in crew:  # they only think
        client.cancel()
    # What is undone later (a pause, a listener, a drain) has been undone by then.
    await asyncio.sleep(PATIENCE * crowd.pace)
    assert crowd.submitted == crowd.settled, (crowd.submitted, crowd.settled)
    assert crowd.check()
    snapshot = crowd.scheduler.snapshot()
    assert not crowd.scheduler.calls(), snapshot
    for kind in KINDS:
        called, uncalled = crowd.called[kind], crowd.cancelled_uncalled[kind]
        assert_accounted(snapshot.totals[kind], crowd.outcomes[kind], called, uncalled, crowd.late_readers[kind])
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    assert not tasks, tasks
    assert not crowd.armed_timers(), crowd.armed_timers()
    assert not (known := tenants_remembered(crowd.scheduler)), known
    await _no_slot_is_lost_or_gained(crowd.scheduler)
    assert await crowd.scheduler.close() == CloseReport()
    with suppress(SchedulerClosed):
        await crowd.scheduler.submit("interactive", noop)
        raise AssertionError("a closed scheduler took a call")


async def _no_slot_is_lost_or_gained(scheduler: TrafficScheduler) -> None:
    timeouts = (f"{kind}_{what}_timeout" for kind in KINDS for what in ("queue", "run"))
    nothing: dict[str, Any] = dict.fromkeys((*THRESHOLDS, *timeouts, *BOUNDS))
    cap, batch_max = 16, 11
    scheduler.configure(
        max_concurrency=cap,
        batch_max_concurrency=batch_max,
        batch_min_concurrency=1,
        policy=FixedPolicy(batch_max),
        **nothing,
    )
    await assert_whole(scheduler)
    crowd = [hold(scheduler, "batch") for _ in range(batch_max + 1)]
    await settle()
    assert sum(held.started for held in crowd) == batch_max, scheduler
    for held in crowd:
        held.release()
    await asyncio.wait([held.task for held in crowd])


# Memory


def resident() -> int:
    """Bytes of memory that this process holds."""
    gc.collect()
    statm = Path("/proc/self/statm")
    if statm.exists():
        import resource

        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return _highest_resident()


def _highest_resident() -> int:
    import resource

    # Kilobytes, and bytes on a Mac.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


async def many_calls(scheduler: TrafficScheduler, number: int, step_on: Callable[[], None]) -> None:
    """A hundred at a time, for 16 slots; every tenth is cancelled, most of those while they wait."""
    for _ in range(number // 100):
        tasks = [
            asyncio.create_task(scheduler.submit("batch" if i % 3 else "interactive", one_yield)) for i in range(100)
        ]
        await asyncio.sleep(0)
        for task in tasks[::10]:
            task.cancel()
        await asyncio.wait(tasks)
        assert sum(task.cancelled() for task in tasks) == 10
        step_on()


async def measure_memory(number: int, step_on: Callable[[float], None]) -> tuple[int, int]:
    """Bytes held after some calls, and after many."""
    scheduler = TrafficScheduler(max_concurrency=16, interactive_rps_threshold=1e9, interactive_p95_threshold=1e9)

    def show() -> None:
        step_on(100 / number)

    await many_calls(scheduler, FEW_CALLS, show)
    few = resident()
    await many_calls(scheduler, number - FEW_CALLS, show)
    return few, resident()


# What is printed


def show_memory(number: int) -> bool:
    """True if it is flat."""
    with progress_bar("memory") as step_on:
        few, many = asyncio.run(measure_memory(number, step_on))
    print(
        f"\nMemory, 16 slots, 10 % cancelled: {few / 1e6:.1f} MB after {power(FEW_CALLS)} calls, "
        f"{many / 1e6:.1f} MB after {power(number)}; {reach(many / few, 'as much', MOST_GROWTH)}"
    )
    return many <= few * MOST_GROWTH


def quantile(waits: list[float], share: float) -> str:
    """Nearest rank, in milliseconds."""
    if not waits:
        return "-"
    return f"{1e3 * waits[min(len(waits) - 1, int(share * len(waits)))]:,.1f} ms"


def column(crowd: Crowd, seconds: float) -> dict[str, str]:
    """What became of it, line by line."""
    sums = {name: sum(crowd.outcomes[kind][name] for kind in KINDS) for name in OUTCOMES}
    waits, batch = sorted(crowd.waits), crowd.scheduler.snapshot().totals["batch"]
    lines = {"seconds": f"{seconds:,.0f}", "calls": f"{crowd.submitted.total():,}"}
    lines |= {f"  {OUTCOMES[name]}": f"{number:,}" for name, number in sums.items()}
    lines |= {"calls in lent slots": f"{crowd.uncounted:,}"}
    lines |= {"cancels sent": f"{crowd.cancels.total():,}"}
    lines |= {f"  {how}": f"{crowd.cancels[how]:,}" for how in sorted(crowd.cancels)}
    lines |= {"changes": f"{crowd.done.total():,}"}
    lines |= {f"  {act.replace('_', ' ')}": f"{crowd.done[act]:,}" for act in sorted(crowd.done)}
    lines |= {f"interactive wait, P{100 * share:.0f}": quantile(waits, share) for share in (0.5, 0.95, 0.99)}
    lines |= {"batch calls completed per second": f"{batch.completed / seconds:,.1f}"}
    lines |= {"broken promises": f"{crowd.fault_count:,}"}
    return lines


OUTCOMES: Final[Mapping[str, str]] = {
    "returned": "returned",
    "Boom": "failed",
    "CancelledError": "cancelled",
    "RunTimeout": "run timeout",
    "QueueTimeout": "queue timeout",
    "QueueFull": "queue full",
    "StreamClosed": "streams left or closed",
    "idle": "streams left too long",
}


def show(columns: Mapping[str, Mapping[str, str]]) -> None:
    """The lines side by side."""
    names = dict.fromkeys(name for lines in columns.values() for name in lines)
    print(f"\n  {'':<36}" + "".join(f"{title:>16}" for title in columns))
    for name in names:
        print(f"  {name:<36}" + "".join(f"{lines.get(name, '0'):>16}" for lines in columns.values()))


def show_soaks(effort: Effort, seed: int) -> bool:
    """True if every promise was kept."""
    crowds: dict[str, tuple[Crowd, float]] = {}
    if effort.virtual:
        with progress_bar("virtual time") as step_on:
            crowd = run_virtual(soak(effort.virtual, VIRTUAL_PACE, seed, step_on))
        crowds["virtual time"] = crowd, effort.virtual
    if effort.real:
        with progress_bar("real time") as step_on:
            crowd = asyncio.run(soak(effort.real, REAL_PACE, seed, step_on))
        crowds["real time"] = crowd, effort.real
    show({title: column(*found) for title, found in crowds.items()})
    for title, (crowd, _) in crowds.items():
        for fault in crowd.faults:
            print(f"\n{title}, seed {seed}, {fault}")
    return not any(crowd.fault_count for crowd, _ in crowds.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 seconds in all")
    parser.add_argument("--virtual", type=float, metavar="SECONDS", help=f"of virtual time, {FULL.virtual:g}")
    parser.add_argument("--real", type=float, metavar="SECONDS", help=f"of real time, {FULL.real:g}")
    parser.add_argument("--calls", type=int, help=f"for memory, {FULL.calls}; 0 for none")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    usual = QUICK if given.quick else FULL
    effort = Effort(
        usual.virtual if given.virtual is None else given.virtual,
        usual.real if given.real is None else given.real,
        usual.calls if given.calls is None else given.calls,
    )
    # Broken listeners and policies are part of the soak; each would be logged once.
    logging.getLogger("llm_traffic_scheduler").setLevel(logging.CRITICAL)
    began = perf_counter()
    print(f"{platform.python_implementation()} {platform.python_version()}; seed {given.seed}")
    flat = show_memory(effort.calls) if effort.calls else True
    whole = show_soaks(effort, given.seed)
    print(f"\n{perf_counter() - began:.0f} s: {'ok' if flat and whole else 'NOT OK'}")
    return 0 if flat and whole else 1


if __name__ == "__main__":
    sys.exit(main())
