"""H. Threads, loops and tasks: a scheduler made before a fork is at rest in the child, and none is sent anywhere."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import llm_traffic_scheduler
from llm_traffic_scheduler import SchedulerMisuse
from tests.scenarios.stage import LOOPS, Stage, scenario
from tests.support import hold, settle

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

SCRIPT = """
import asyncio, json, multiprocessing, os, sys, warnings
from llm_traffic_scheduler import TrafficScheduler
from tests.loops import loop_factories

warnings.simplefilter("error")
warnings.filterwarnings("ignore", "This process .* is multi-threaded")
how, loop_name = sys.argv[1:3]
scheduler = TrafficScheduler(max_concurrency=2, name="shared")

def runner():
    return asyncio.Runner(loop_factory=loop_factories()[loop_name])

async def slots():
    started, gate = [], asyncio.Event()
    async def job():
        started.append(1)
        await gate.wait()
    tasks = [asyncio.create_task(scheduler.submit("interactive", job)) for _ in range(4)]
    for _ in range(10):
        await asyncio.sleep(0)
    found = len(started)
    gate.set()
    await asyncio.gather(*tasks)
    scheduler.check()
    return found

def child(writing=None):
    with runner() as loop:
        answer = json.dumps([scheduler.snapshot().running, loop.run(slots())])
    if writing is None:
        return answer
    os.write(writing, answer.encode())

def in_a_child():
    reading, writing = os.pipe()
    if how == "os.fork":
        if os.fork() == 0:
            child(writing)
            os._exit(0)
        os.wait()
    else:
        context = multiprocessing.get_context(how)
        with context.Pool(1) if how == "spawn" else open(os.devnull) as pool:
            if how == "spawn":
                os.write(writing, pool.apply(child).encode())
            else:
                process = context.Process(target=child, args=(writing,))
                process.start()
                process.join()
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return json.load(pipe)

async def main():
    gate = asyncio.Event()
    held = [asyncio.create_task(scheduler.submit("interactive", gate.wait, queue_timeout=60)) for _ in range(3)]
    for _ in range(5):
        await asyncio.sleep(0)
    seen = in_a_child()
    busy = [scheduler.snapshot().running, scheduler.snapshot().interactive_queued]
    gate.set()
    await asyncio.gather(*held)
    return seen, busy, await slots()

if __name__ == "__main__":
    with runner() as loop:
        loop.run(slots())
    before = in_a_child()  # used, and at rest, its loop closed
    with runner() as loop:
        print(json.dumps([before, *loop.run(main())]))
"""

each_loop = pytest.mark.parametrize("loop_name", LOOPS)


def _answers(directory: Path, *arguments: str) -> Any:
    script = directory / "story.py"
    script.write_text(SCRIPT, encoding="utf-8")
    source, root = Path(llm_traffic_scheduler.__file__).parents[1], Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(root)])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@each_loop
@pytest.mark.parametrize("how", ["os.fork", "fork", "spawn"])
@pytest.mark.slow
def test_b99_a_scheduler_from_before_the_fork_is_whole_in_the_child(tmp_path: Path, how: str, loop_name: str) -> None:
    if loop_name == "eager" and sys.version_info < (3, 12):
        pytest.skip("eager tasks came with 3.12")
    before, from_a_busy_parent, parent, after = _answers(
        tmp_path, how, "virtual" if loop_name == "default" else loop_name
    )

    assert before == from_a_busy_parent == [0, 2]
    assert parent == [2, 1]
    assert after == 2


@scenario
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
async def test_b99_a_scheduler_cannot_be_sent_to_another_process(
    stage: Stage, duplicate: Callable[[object], object], used: bool
) -> None:
    scheduler = stage.scheduler(name="gateway")
    calls = [hold(scheduler) for _ in range(3 * used)]
    await settle()

    with pytest.raises(SchedulerMisuse, match=r"'gateway' belongs to this process .* make one in each process"):
        duplicate(scheduler)

    for held in calls:
        held.release()
    await asyncio.gather(*(held.task for held in calls))
