"""`examples/fake_llm_server.py` on a free port of the loopback, in a thread with a loop of its own.

with llm_server(max_num_seqs=2) as server: ... server.url ... server.engine.seen
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn
from fake_llm_server import FakeLLM, app_of

__all__ = ["LLMServer", "llm_server"]


@dataclass
class LLMServer:
    """`url`: without the API's `/v1`."""

    url: str
    engine: FakeLLM


@contextlib.contextmanager
def llm_server(engine: FakeLLM | None = None) -> Iterator[LLMServer]:
    """A server that listens while the block runs; what it is asked in vain is cut off at the end."""
    engine = FakeLLM(prefill=0.002, token=0.002) if engine is None else engine
    config = uvicorn.Config(
        app_of(engine), log_level="critical", lifespan="off", ws="none", timeout_graceful_shutdown=0
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        thread = threading.Thread(target=asyncio.run, args=(server.serve([listening]),), daemon=True)
        thread.start()
        try:
            yield LLMServer(f"http://127.0.0.1:{listening.getsockname()[1]}", engine)
        finally:
            server.should_exit = server.force_exit = True
            thread.join(10)
