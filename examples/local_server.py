"""The server of `fake_llm_server.py` in a thread of its own, on a free port: what the stories beside it talk to.

with local_server(FakeLLM(tokens=40)) as url: ...
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn
from fake_llm_server import FakeLLM, app_of

__all__ = ["local_server"]


@contextlib.contextmanager
def local_server(engine: FakeLLM) -> Iterator[str]:
    """Serve while the block runs; `url` is what an SDK wants as its base."""
    config = uvicorn.Config(app_of(engine), log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=asyncio.run, args=(server.serve([listening]),), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join()
