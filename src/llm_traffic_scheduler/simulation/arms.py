"""What people do without this library: the arms it is compared with.

Floor: fourth. Each arm has the scheduler's own `submit(kind, fn, *args)`, so that the
same traffic runs through all of them.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Literal, Protocol, TypeVar, TypeVarTuple

OURS: Final = "this scheduler"
Kind = Literal["interactive", "batch"]
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Arm(Protocol):
    """Whatever runs calls of both kinds: `TrafficScheduler`, or one of the arms below."""

    async def submit(self, kind: Kind, coro_fn: Callable[[*Ts], Awaitable[T]], /, *args: *Ts) -> T: ...


class Unscheduled:
    """No scheduler: every call goes to the server at once and waits there."""

    async def submit(self, kind: Kind, coro_fn: Callable[[*Ts], Awaitable[T]], /, *args: *Ts) -> T:
        return await coro_fn(*args)


class SemaphoreArm:
    """`asyncio.Semaphore` around every call: a cap for both kinds together, first come first served."""

    def __init__(self, max_concurrency: int) -> None:
        self._semaphore = asyncio.Semaphore(max_concurrency)

    async def submit(self, kind: Kind, coro_fn: Callable[[*Ts], Awaitable[T]], /, *args: *Ts) -> T:
        async with self._semaphore:
            return await coro_fn(*args)


class FixedSplit:
    """Priority by hand: two queues, interactive first, and batch never runs more than a fixed number.

    It is the honest opponent: it keeps slots free for interactive calls, and what it lacks is only that the number
    moves. Cancellation: a waiting call leaves; one that is cancelled just when its turn comes takes the turn with it,
    a fault that hand-written ones have and that does no harm here.
    """

    def __init__(self, max_concurrency: int, batch_max_concurrency: int) -> None:
        self._max = max_concurrency
        self._batch_max = batch_max_concurrency
        self._running = {"interactive": 0, "batch": 0}
        self._queues: dict[Kind, deque[asyncio.Future[None]]] = {"interactive": deque(), "batch": deque()}

    async def submit(self, kind: Kind, coro_fn: Callable[[*Ts], Awaitable[T]], /, *args: *Ts) -> T:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues[kind].append(turn)
        self._fill()
        await turn
        try:
            return await coro_fn(*args)
        finally:
            self._running[kind] -= 1
            self._fill()

    def _fill(self) -> None:
        for kind, queue in self._queues.items():
            while queue and sum(self._running.values()) < self._max:
                if kind == "batch" and self._running["batch"] >= self._batch_max:
                    break
                turn = queue.popleft()
                if not turn.done():
                    self._running[kind] += 1
                    turn.set_result(None)


def opponents(max_concurrency: int, batch_max: int) -> dict[str, Arm]:
    """The arms by name, fresh, with the same cap and the same room for batch as ours."""
    return {
        "no scheduler": Unscheduled(),
        f"semaphore of {max_concurrency}": SemaphoreArm(max_concurrency),
        f"priority with fixed split ({batch_max})": FixedSplit(max_concurrency, batch_max),
    }
