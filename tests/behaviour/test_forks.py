"""A forked child starts with its schedulers at rest, and the parent notices nothing.

Promise 25. Each fork happens in a process of its own, so that the test run's threads stay out of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import llm_traffic_scheduler

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

_PROLOGUE = """
import asyncio, json, os, sys, warnings
from llm_traffic_scheduler import TrafficScheduler, SchedulerClosed

warnings.simplefilter("error")
warnings.filterwarnings("ignore", "This process .* is multi-threaded")
scheduler = TrafficScheduler(max_concurrency=2, name="shared")

async def noop():
    return "done"

async def slots():
    '''How many calls fit in at the same time.'''
    started = 0
    gate = asyncio.Event()
    async def job():
        nonlocal started
        started += 1
        await gate.wait()
    tasks = [asyncio.create_task(scheduler.submit("interactive", job)) for _ in range(4)]
    for _ in range(10):
        await asyncio.sleep(0)
    found = started
    gate.set()
    await asyncio.gather(*tasks)
    scheduler.check()
    return found

def totals():
    kinds = scheduler.snapshot().totals
    return {kind: [t.submitted, t.completed, t.cancelled, t.rejected] for kind, t in kinds.items()}

def in_child(work):
    '''What `work()` returns in a forked child.'''
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            os.write(writing, json.dumps(work()).encode())
        except BaseException as error:
            os.write(writing, json.dumps(repr(error)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = json.load(pipe)
    os.wait()
    return answer
"""


def _answers(script: str) -> Any:
    """Run a script in a fresh interpreter; what it prints last, from JSON."""
    source = Path(llm_traffic_scheduler.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", _PROLOGUE + textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout.splitlines()[-1])


def test_a_child_forked_from_a_busy_loop_has_all_slots_and_the_parent_goes_on() -> None:
    child, parent, after = _answers(
        """
        async def main():
            gate = asyncio.Event()
            held = [asyncio.create_task(scheduler.submit("interactive", gate.wait, run_timeout=60)) for _ in range(3)]
            held.append(asyncio.create_task(scheduler.submit("batch", gate.wait, queue_timeout=60)))
            await asyncio.sleep(0.01)
            child = in_child(lambda: [scheduler.snapshot().running, totals(), asyncio.run(slots()), totals()])
            before = [scheduler.snapshot().running, totals()]
            gate.set()
            await asyncio.gather(*held)
            return child, before, [await slots(), totals()]
        print(json.dumps(asyncio.run(main())))
        """
    )

    assert child == [
        0,
        {"interactive": [3, 0, 3, 0], "batch": [1, 0, 1, 0]},
        2,
        {"interactive": [7, 4, 3, 0], "batch": [1, 0, 1, 0]},
    ]
    assert parent == [2, {"interactive": [3, 0, 0, 0], "batch": [1, 0, 0, 0]}]
    assert after == [2, {"interactive": [7, 7, 0, 0], "batch": [1, 1, 0, 0]}]


def test_a_child_forked_from_inside_a_call_has_no_current_slot_and_all_slots() -> None:
    child, parent = _answers(
        """
        from llm_traffic_scheduler import current_slot
        async def main():
            async with scheduler.slot("interactive"):
                child = in_child(lambda: [current_slot() is None, asyncio.run(slots())])
                return child, [current_slot() is None, scheduler.snapshot().running]
        print(json.dumps(asyncio.run(main())))
        """
    )

    assert child == [True, 2]
    assert parent == [False, 1]


@pytest.mark.parametrize("used", [True, False], ids=["used before", "never used"])
def test_a_child_forked_between_two_runs_works(used: bool) -> None:
    child, parent = _answers(
        f"""
        if {used}:
            asyncio.run(slots())
        child = in_child(lambda: asyncio.run(slots()))
        print(json.dumps([child, asyncio.run(slots())]))
        """
    )

    assert (child, parent) == (2, 2)


def test_a_call_of_the_parent_that_ends_in_the_child_too_gives_back_no_slot_there() -> None:
    child = _answers(
        """
        async def main():
            coroutine = scheduler.submit("interactive", asyncio.Event().wait)
            coroutine.send(None)
            def work():
                coroutine.close()  # as the child's garbage collector may
                return [scheduler.snapshot().running, asyncio.run(slots())]
            child = in_child(work)
            coroutine.close()
            await asyncio.sleep(0)
            assert await slots() == 2
            return child
        print(json.dumps(asyncio.run(main())))
        """
    )

    assert child == [0, 2]


def test_a_child_forked_while_the_parent_closes_can_close_by_itself() -> None:
    child, parent = _answers(
        """
        async def main():
            gate = asyncio.Event()
            held = [asyncio.create_task(scheduler.submit("interactive", gate.wait, queue_timeout=60)) for _ in range(3)]
            await asyncio.sleep(0.01)
            closing = asyncio.create_task(scheduler.close(timeout=30))
            await asyncio.sleep(0.01)
            async def close():
                report = await asyncio.wait_for(scheduler.close(timeout=5), 10)
                try:
                    await scheduler.submit("batch", noop)
                except SchedulerClosed:
                    return report.finished + report.rejected + report.cancelled + report.abandoned
            child = in_child(lambda: asyncio.run(close()))
            gate.set()
            await asyncio.gather(*held)
            return child, (await closing).finished
        print(json.dumps(asyncio.run(main())))
        """
    )

    assert (child, parent) == (3, 3)


def test_a_scheduler_that_was_collected_before_the_fork_is_no_trouble() -> None:
    answer = _answers(
        """
        import gc
        for _ in range(100):
            TrafficScheduler(max_concurrency=2)
        gc.collect()
        print(json.dumps(in_child(lambda: asyncio.run(slots()))))
        """
    )

    assert answer == 2


def test_a_thread_of_a_forked_child_never_waits_for_the_parents_loop() -> None:
    answer = _answers(
        """
        async def main():
            await scheduler.drain()
            future = scheduler.submit_from_thread("batch", asyncio.sleep, 60, label="night")

            def wait():
                try:
                    return future.result(20)
                except Exception as error:
                    return f"{type(error).__name__}: {error}"

            answer = await asyncio.to_thread(in_child, wait)
            future.cancel()
            return answer

        print(json.dumps(asyncio.run(main())))
        """
    )

    assert answer.startswith("SchedulerMisuse: the event loop of scheduler 'shared' was closed before the batch call")


def test_in_a_child_a_policy_that_observes_starts_without_the_parents_calls() -> None:
    found = _answers("""
        from llm_traffic_scheduler import Decision

        class Hears:
            unfinished, resets = set(), 0
            def reset(self):
                self.unfinished = set()
                self.resets += 1
            def advance(self, now, signals): ...
            def decide(self, now, signals):
                return Decision(1)
            def observe(self, now, event):
                if type(event).__name__ == "Arrived":
                    self.unfinished.add(event.call)
                elif type(event).__name__ == "Ended":
                    self.unfinished.remove(event.call)

        heard = Hears()
        scheduler.configure(policy=heard)

        def child():
            before = len(heard.unfinished)
            found = asyncio.new_event_loop().run_until_complete(slots())
            return [before, found, len(heard.unfinished), scheduler.snapshot().policy_faults]

        async def main():
            gate = asyncio.Event()
            tasks = [asyncio.create_task(scheduler.submit("interactive", gate.wait)) for _ in range(3)]
            for _ in range(5):
                await asyncio.sleep(0)
            answer = in_child(child)
            here = len(heard.unfinished)
            gate.set()
            await asyncio.gather(*tasks)
            return [answer, here, len(heard.unfinished), scheduler.snapshot().policy_faults]

        print(json.dumps(asyncio.run(main())))
        """)

    assert found == [[0, 2, 0, 0], 3, 0, 0]
