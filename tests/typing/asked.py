"""A scheduler, and what it is asked to call; for the checks of types."""

from __future__ import annotations

from llm_traffic_scheduler import TrafficScheduler

__all__ = ["ask", "blocking", "ping", "scheduler"]

scheduler = TrafficScheduler(max_concurrency=8, interactive_p95_threshold=0.5)


async def ask(question: str, temperature: float = 0.0) -> list[str]:
    return [question]


async def ping() -> None: ...


def blocking(question: str) -> str:
    return question
