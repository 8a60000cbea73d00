"""The server of the examples does what it says, so that what is tried out on it means something."""

from __future__ import annotations

import asyncio
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

httpx = pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

import fake_llm_server  # noqa: E402  # it needs what is looked for above
from fake_llm_server import FAULTS, FakeLLM  # noqa: E402

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


async def test_a_fault_that_it_does_not_know_is_a_400_that_names_those_it_knows(server: LLMServer) -> None:
    answers = [await ask(server, "explode"), await ask(server, "", headers={"x-fault": "explode"})]

    for answer in answers:
        assert answer.status_code == 400
        said = answer.json()["error"]["message"]
        assert all(fault in said for fault in ("explode", *FAULTS))


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
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, EXAMPLE, "--port=0", stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    transport = httpx.AsyncHTTPTransport(retries=9)  # it listens before it answers
    async with httpx.AsyncClient(transport=transport, timeout=60) as client:
        seen = (await client.get(f"{address}/seen")).json()["seen"]
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(f"{address}/v1/chat/completions?fault=reset", json={**ASKED, "max_tokens": 1})
    process.terminate()
    _, said = await process.communicate()

    assert seen == 0
    assert said.decode() == f"It listens: base_url={address}/v1, any key, model fake. Ctrl+C ends it.\n"


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["--max-num-seqs", "0"], "must be a whole number, at least 1, got '0'"),
        (["--tokens", "-1"], "must be a whole number, at least 1, got '-1'"),
        (["--port", "99999"], "must be a whole number from 0 to 65535, got '99999'"),
        (["--prefill", "nan"], "must be a finite number, at least 0, got 'nan'"),
        (["--bogus"], "unrecognized arguments: --bogus"),
    ],
)
async def test_bad_input_is_one_line_and_status_2(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [EXAMPLE.name, *arguments])

    with pytest.raises(SystemExit) as ended:
        fake_llm_server.main()

    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.count("\n") == 1
    assert part in said


async def test_its_help_names_every_fault(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [EXAMPLE.name, "--help"])

    with pytest.raises(SystemExit):
        fake_llm_server.main()

    said = capsys.readouterr().out
    assert all(f"{fault} " in said for fault in FAULTS)


@pytest.mark.parametrize("library", ["uvicorn", "starlette"])
async def test_it_says_what_to_install(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, f"{library}.applications", None)

    with pytest.raises(SystemExit, match="is not installed: pip install starlette uvicorn"):
        runpy.run_path(str(EXAMPLE))
