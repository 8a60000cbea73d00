"""The server of the examples does what it says, so that what is tried out on it means something."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

httpx = pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

from fake_llm_server import FakeLLM  # noqa: E402  # it needs what is looked for above

from tests.llm_server import LLMServer, llm_server  # noqa: E402

pytestmark = pytest.mark.asyncio(loop_factories=["real"])

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fake_llm_server.py"
ASKED = {"model": "fake", "messages": []}


@pytest.fixture(scope="module")
def server() -> Iterator[LLMServer]:
    with llm_server(FakeLLM(max_num_seqs=2, prefill=0.002, token=0.002)) as running:
        yield running


async def ask(server: LLMServer, fault: str, **more: Any) -> Any:
    async with httpx.AsyncClient(timeout=30) as client:
        return await client.post(f"{server.url}/v1/chat/completions?fault={fault}", json=ASKED, **more)


async def test_it_asks_to_wait_and_fails_on_demand(server: LLMServer) -> None:
    throttled, failed = await ask(server, "throttle"), await ask(server, "", headers={"x-fault": "error"})

    assert (throttled.status_code, throttled.headers["retry-after"]) == (429, "1")
    assert failed.status_code == 500


async def test_it_forgets_to_count_tokens_on_demand(server: LLMServer) -> None:
    counted, uncounted = await ask(server, ""), await ask(server, "no_usage")

    assert counted.json()["usage"]["completion_tokens"] == 8
    assert uncounted.json()["usage"] is None


async def test_a_batch_is_no_larger_than_allowed_and_the_rest_wait(server: LLMServer) -> None:
    server.engine.most_running = 0
    answers = await asyncio.gather(*(ask(server, "") for _ in range(6)))

    assert {answer.status_code for answer in answers} == {200}
    assert server.engine.most_running == 2


async def test_it_shows_its_gauges_as_vllm_does(server: LLMServer) -> None:
    async with httpx.AsyncClient() as client:
        hanging = asyncio.ensure_future(ask(server, "hang"))
        async with asyncio.timeout(60):
            while server.engine.running == 0:  # noqa: ASYNC110  # it lives in another thread
                await asyncio.sleep(0.002)
        text = (await client.get(f"{server.url}/metrics")).text
        hanging.cancel()
        await asyncio.wait({hanging})

    gauges = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    names = {name.partition("{")[0]: float(value) for name, value in gauges.items()}
    assert names.keys() == {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
    }
    assert names["vllm:num_requests_running"] == 1


async def test_an_answer_is_cut_off_on_demand_streamed_or_not(server: LLMServer) -> None:
    for more in ({}, {"stream": True}):
        with pytest.raises(httpx.RemoteProtocolError, match="without sending complete"):
            async with httpx.AsyncClient(timeout=30) as client:
                await client.post(f"{server.url}/v1/chat/completions?fault=reset", json={**ASKED, **more})


async def test_it_says_what_it_has_seen_since_it_was_asked_last(server: LLMServer) -> None:
    async with httpx.AsyncClient() as client:
        before = (await client.get(f"{server.url}/seen")).json()
        await asyncio.gather(*(ask(server, "") for _ in range(5)))
        after = (await client.get(f"{server.url}/seen")).json()
        later = (await client.get(f"{server.url}/seen")).json()

    assert after["seen"] - before["seen"] == 5
    assert (after["most_running"], after["running"], after["waiting"]) == (2, 0, 0)
    assert 2 < after["most_present"] <= 5
    assert (later["most_running"], later["most_present"]) == (0, 0)


async def test_it_takes_a_free_port_and_says_which() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, EXAMPLE, "--port=0", stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    transport = httpx.AsyncHTTPTransport(retries=9)  # it listens before it answers
    async with httpx.AsyncClient(transport=transport, timeout=60) as client:
        seen = (await client.get(f"{address}/seen")).json()["seen"]
    process.terminate()
    await process.wait()

    assert seen == 0
