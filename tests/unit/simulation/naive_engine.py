"""The dullest possible twin of `BatchingServer`: every step on its own, every sum from scratch.

`from tests.unit.simulation.naive_engine import NaiveCall, run_naively`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from llm_traffic_scheduler.simulation import Engine

__all__ = ["Arrival", "run_naively"]

Arrival: TypeAlias = tuple[float, int, int]
"""When a call comes, tokens of its prompt, tokens of its answer."""


@dataclass(eq=False, slots=True)
class _Call:
    index: int
    prompt: int
    output: int
    generated: int = 0
    to_prefill: int = 0
    prefilled: int = 0
    memory: int = 0

    @property
    def decodes(self) -> bool:
        return self.prefilled == self.to_prefill


def run_naively(engine: Engine, arrivals: Sequence[Arrival]) -> list[float]:
    """When each call ends; arrivals in order of time."""
    now = 0.0
    ends = [0.0] * len(arrivals)
    coming = [(time, _Call(number, max(1, p), max(1, o))) for number, (time, p, o) in enumerate(arrivals)]
    waiting: list[_Call] = []
    running: list[_Call] = []
    while coming or waiting or running:
        if not waiting and not running:
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            waiting.append(coming.pop(0)[1])
        decoding, pieces = _schedule(engine, waiting, running)
        now += _cost(engine, decoding, pieces)
        for call in [*decoding, *(call for call, _, _ in pieces if call.decodes)]:
            call.generated += 1
            if call.generated == call.output:
                running.remove(call)
                ends[call.index] = now
    return ends


def _schedule(
    engine: Engine, waiting: list[_Call], running: list[_Call]
) -> tuple[list[_Call], list[tuple[_Call, int, int]]]:
    """Who decodes, and (call, tokens before, tokens now) of each prefill chunk."""
    decoding = [call for call in running if call.decodes]
    while sum(call.memory for call in running) + len(decoding) > engine.kv_tokens:
        victim = running.pop()
        victim.memory = victim.prefilled = 0
        victim.to_prefill = -1
        waiting.insert(0, victim)
        decoding = [call for call in running if call.decodes]
    for call in decoding:
        call.memory += 1
    budget = engine.token_budget - len(decoding)
    pieces = []
    for call in running:
        if not call.decodes and budget:
            pieces.append(_chunk(call, budget))
            budget -= pieces[-1][2]
    while budget and waiting and len(running) < engine.max_num_seqs:
        call = waiting[0]
        call.to_prefill = call.prompt + call.generated
        if sum(other.memory for other in running) + call.to_prefill > engine.kv_tokens:
            break
        call.memory = call.to_prefill
        running.append(waiting.pop(0))
        pieces.append(_chunk(call, budget))
        budget -= pieces[-1][2]
    return decoding, pieces


def _chunk(call: _Call, budget: int) -> tuple[_Call, int, int]:
    before = call.prefilled
    tokens = min(budget, call.to_prefill - before)
    call.prefilled += tokens
    return call, before, tokens


def _cost(engine: Engine, decoding: list[_Call], pieces: list[tuple[_Call, int, int]]) -> float:
    tokens = len(decoding) + sum(now for _, _, now in pieces)
    context = sum(call.memory for call in decoding)
    pairs = sum(now * (before + now / 2) for _, before, now in pieces)
    memory_bound = engine.floor + engine.floor_per_token * tokens
    compute_bound = engine.base + engine.base_per_token * tokens
    attention = engine.per_context_token * context + engine.per_token_pair * pairs
    return max(memory_bound, compute_bound) + engine.overhead + attention
