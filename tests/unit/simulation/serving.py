"""Calls to simulated backends, and what became of them.

`from tests.unit.simulation.serving import Served, serve`
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from llm_traffic_scheduler.simulation import Backend

__all__ = ["Served", "serve", "serve_all"]


@dataclass(frozen=True, slots=True)
class Served:
    """One call: seconds to its first token (None without one), seconds to its end, and the error if it failed."""

    first_token: float | None
    seconds: float
    error: Exception | None = None


async def serve(backend: Backend, prompt: int = 100, output: int = 10, *, at: float = 0.0) -> Served:
    """One call that comes `at` seconds from now."""
    await asyncio.sleep(at)
    loop, first, error = asyncio.get_running_loop(), list[float](), None
    start = loop.time()
    try:
        await backend.serve(prompt, output, first_token=lambda: first.append(loop.time() - start))
    except Exception as raised:
        error = raised
    assert len(first) <= 1, "a call has one first token"
    return Served(first[0] if first else None, loop.time() - start, error)


async def serve_all(backend: Backend, calls: Sequence[tuple[float, int, int]]) -> list[Served]:
    """Calls given as (when each comes, prompt, output), all together."""
    return list(await asyncio.gather(*(serve(backend, prompt, output, at=at) for at, prompt, output in calls)))
