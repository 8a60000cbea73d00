"""Event loops in threads of their own, and threads that are watched from a test's loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from llm_traffic_scheduler import TrafficScheduler
from tests.support import make_scheduler

__all__ = ["PATIENCE", "Background", "Block", "background_loop", "bound_scheduler", "in_thread", "until"]

# Seconds of real time after which a test gives up, never how long it takes.
PATIENCE: Final = 20.0

T = TypeVar("T")


def in_thread(function: Callable[[], T]) -> Future[T]:
    """Run `function` in a new thread; waiting for it ends, one way or the other."""
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=work, name="worker", daemon=True).start()
    return outcome


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until `condition` is true, which a thread will see to."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.001)


async def bound_scheduler(**settings: Any) -> TrafficScheduler:
    """A scheduler that knows the running loop."""
    scheduler = make_scheduler(**settings)
    await scheduler.drain()
    return scheduler


class Block:
    """A thread that holds a slot until `leave()`, and how it ended."""

    def __init__(self, scheduler: TrafficScheduler, kind: Any = "batch", **options: Any) -> None:
        self.inside = threading.Event()
        self.error: BaseException | None = None
        self._go_on = threading.Event()
        self._scheduler, self._kind, self._options = scheduler, kind, options
        self.thread: Future[None] = in_thread(self._run)

    def _run(self) -> None:
        with self._scheduler.slot_from_thread(self._kind, **self._options):
            self.inside.set()
            assert self._go_on.wait(PATIENCE)
            if self.error is not None:
                raise self.error

    def leave(self, error: BaseException | None = None) -> None:
        """Let the block end, with `error` if there is one."""
        self.error = error
        self._go_on.set()

    async def ended(self) -> BaseException | None:
        """What the thread's `with` statement raised."""
        return await asyncio.to_thread(self.thread.exception, PATIENCE)


class Background:
    """A loop that runs in a thread until `stop()`; whoever stopped it may run it again or close it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.errors.append(context))
        self._thread: threading.Thread
        self.go_on()

    def go_on(self) -> None:
        """Run the loop, again."""
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.run(asyncio.sleep(0))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What `coroutine` returns on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE)

    def stop(self) -> None:
        """Stop the loop where it is, and cancel nothing."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def drop(self) -> None:
        """Stop the loop and close it, and cancel nothing."""
        self.stop()
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.loop.close()


@contextmanager
def background_loop() -> Iterator[Background]:
    """A loop in a thread, for tests that wait in their own."""
    background = Background()
    yield background
    if not background.loop.is_closed():
        if background.loop.is_running():
            background.run(_cancel_all())
        background.drop()
    assert background.errors == []


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
