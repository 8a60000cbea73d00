"""Runs spread over processes: order kept, a dead process is an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

import llm_traffic_scheduler
from llm_traffic_scheduler.simulation.pool import run_parallel

SOURCES = Path(llm_traffic_scheduler.__file__).parents[1]
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
# Two workers that say that they are at work, and would be for long.
PROGRAM = """
import os, signal, sys
from llm_traffic_scheduler.simulation.pool import run_parallel

def long(number):
    os.write(1, b"%d " % os.getpid())
    signal.pause()

if __name__ == "__main__":
    try:
        run_parallel(long, [1, 2, 3], jobs=2)
    except KeyboardInterrupt:
        sys.exit(130)
"""


def doubled(number: int) -> int:
    return 2 * number


def elsewhere(number: int) -> int:
    return os.getpid()


def inverse(number: int) -> float:
    return 1 / number


def dies(number: int) -> int:
    os._exit(1)


def fails_beside_one_that_lasts(number: int) -> None:
    threading.Event().wait(900 * number)
    raise ValueError(number)


def started(tmp_path: Path) -> subprocess.Popen[str]:
    """The program, in a process group of its own, with both workers at work. They write to its stdout as well, so
    `communicate` returns when the last of them has ended.
    """
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    program = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        start_new_session=True,
    )
    assert program.stdout is not None
    said = ""
    while said.count(" ") < 2:
        said += program.stdout.read(1)
    return program


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_the_order_of_the_items(jobs: int) -> None:
    heard: list[float] = []

    assert run_parallel(doubled, range(12), jobs=jobs, progress=heard.append) == [2 * number for number in range(12)]
    assert sum(heard) == pytest.approx(1.0)


def test_one_job_is_this_process_and_two_are_others() -> None:
    assert set(run_parallel(elsewhere, [1, 2], jobs=1)) == {os.getpid()}
    assert os.getpid() not in run_parallel(elsewhere, [1, 2], jobs=2)


def test_no_items_are_no_results() -> None:
    assert run_parallel(doubled, []) == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_item_that_fails_is_named(jobs: int) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run_parallel(inverse, [2, 0, 1], jobs=jobs)

    assert caught.value.__notes__ == ["in run 2 of 3: 0"]


def test_a_process_that_dies_is_an_error_and_not_a_result() -> None:
    with pytest.raises(BrokenProcessPool):
        run_parallel(dies, [1, 2, 3], jobs=2)


@POSIX
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGHUP"])
def test_workers_end_with_the_process_they_work_for_whatever_ended_it(tmp_path: Path, name: str) -> None:
    program = started(tmp_path)

    program.send_signal(signal.Signals[name])

    program.communicate(timeout=120)
    assert program.returncode == -signal.Signals[name]


@POSIX
@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["to the program", "to its group, as Ctrl-C"])
@pytest.mark.slow
def test_an_interrupt_ends_the_program_and_its_workers_at_once_and_in_silence(
    tmp_path: Path, send: Callable[[int, int], None]
) -> None:
    program = started(tmp_path)

    send(program.pid, signal.SIGINT)
    _, errors = program.communicate(timeout=120)

    assert (program.returncode, errors) == (130, "")


def test_a_failure_does_not_wait_for_the_items_that_are_given_up() -> None:
    begun = time.monotonic()

    with pytest.raises(ValueError, match="0"):
        run_parallel(fails_beside_one_that_lasts, [1, 0], jobs=2)

    assert time.monotonic() - begun < 600
