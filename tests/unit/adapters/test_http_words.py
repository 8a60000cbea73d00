from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_traffic_scheduler import QueueFull
from llm_traffic_scheduler.adapters.http_words import (
    Tokens,
    body_length,
    is_searched,
    refusal_body,
    refusal_headers,
    retry_after,
)

ROLE = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n'
WORD = b'data: {"choices": [{"index": 0, "delta": {"content": "The"}}]}\n\n'
START = b'event: message_start\ndata: {"type": "message_start", "message": {}}\n\n'
ANTHROPIC = b'event: content_block_delta\ndata: {"type": "content_block_delta"}\n\n'
RESPONSES = b'data: {"type": "response.output_text.delta", "delta": "The"}\n\n'
TOOL = b'data: {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}\r\n\r\n'


def refused(wait: float | None) -> QueueFull:
    return QueueFull("full", kind="batch", queued=3, limit=3, retry_after=wait)


@pytest.mark.parametrize("event", [WORD, ANTHROPIC, RESPONSES, TOOL])
def test_an_event_that_carries_a_token_is_the_first_token(event: bytes) -> None:
    first = Tokens()

    assert not first.feed(b": keep-alive\n\n" + ROLE + START)
    assert first.feed(event)


@pytest.mark.parametrize(
    "event",
    [
        ROLE,
        START,
        b"data: [DONE]\n\n",
        b'data: {"choices": [], "note": "delta"}\n\n',
        b'data: {"choices": [{"delta": {}}]}\n\n',
        b'data: "delta"\n\n',
        b'data: {"delta"\n\n',
        b'data: {"choices": [null, {"delta": null}]}\n\n',
        b"deltas come later\n\n",
        b'event: message_delta\ndata: {"type": "message_delta", "usage": {"output_tokens": 0}}\n\n',
        b'event: message_delta\ndata: {"usage": {"output_tokens": 0}}\n\n',
    ],
)
def test_what_carries_no_token_is_none(event: bytes) -> None:
    tokens = Tokens()

    assert not tokens.feed(event)
    assert tokens.count == 0


@given(st.integers(1, 60))
def test_the_first_token_is_found_however_the_bytes_are_cut(size: int) -> None:
    whole, first = ROLE + START + WORD, Tokens()

    seen = [first.feed(whole[at : at + size]) for at in range(0, len(whole), size)]

    assert seen.index(True) * size + size >= len(whole) - 1 - size
    assert not any(seen[:-2])


@given(st.integers(1, 90))
def test_tokens_are_counted_however_the_bytes_are_cut(size: int) -> None:
    whole, tokens = ROLE + WORD + START + ANTHROPIC + TOOL + RESPONSES + b"data: [DONE]\n\n", Tokens()

    for at in range(0, len(whole), size):
        tokens.feed(whole[at : at + size])

    assert tokens.count == 4


@pytest.mark.parametrize(
    "said,count",
    [
        ({"usage": {"completion_tokens": 40}, "choices": []}, 40),
        ({"usage": {"completion_tokens": 40, "completion_tokens_details": {"reasoning_tokens": 30}}}, 10),
        ({"usage": {"completion_tokens": 40, "completion_tokens_details": None}}, 40),
        ({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 40}}, 40),
        ({"type": "response.completed", "response": {"usage": {"output_tokens": 40}}}, 40),
        ({"usage": None, "choices": []}, 3),
        ({"usage": {"completion_tokens": 1}}, 3),
        ({"usage": {"completion_tokens": "many"}}, 3),
        ({"usage": {"completion_tokens": True}}, 3),
        ({"usage": [40]}, 3),
        ({"response": "usage"}, 3),
    ],
)
def test_usage_goes_before_the_number_of_events_and_is_at_least_that(said: dict[str, object], count: int) -> None:
    tokens = Tokens()

    tokens.feed(ROLE + WORD * 3)
    tokens.feed(b"data: " + json.dumps(said).encode() + b"\n\n")

    assert tokens.count == count


SPELLED: list[tuple[str, str]] = [(", ", ": "), (",", ":"), (" , ", " : ")]


@pytest.mark.parametrize("usage", [None, {"completion_tokens": 7}])
@pytest.mark.parametrize("spelled", SPELLED)
@given(st.text())
def test_a_chunk_counts_alike_however_it_is_spelled(
    spelled: tuple[str, str], usage: dict[str, int] | None, text: str
) -> None:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    event = json.dumps({"choices": [choice], "usage": usage}, separators=spelled)
    tokens = Tokens()

    said = tokens.feed(b"data: " + event.encode() + b"\n\n")

    assert said == (text != "")
    assert tokens.count == (7 if usage else said)


def test_a_chunk_that_is_quoted_in_a_text_is_none() -> None:
    tokens = Tokens()
    quoted = json.dumps(WORD.decode())

    said = tokens.feed(
        b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}], "note": %b}\n\n' % quoted.encode()
    )

    assert not said


@pytest.mark.parametrize(
    "said",
    [
        {"type": "response.completed", "response": {"tools": [{"usage": None}], "usage": {"output_tokens": 9}}},
        {"type": "message_delta", "usage": {"output_tokens": 9, "server_tool_use": {"usage": None}}},
        {"choices": [{"delta": {"content": "."}, "usage": None}], "usage": {"completion_tokens": 9}},
    ],
)
def test_an_event_with_a_usage_that_is_null_may_have_another(said: dict[str, object]) -> None:
    tokens = Tokens()

    tokens.feed(b"data: " + json.dumps(said).encode() + b"\n\n")

    assert tokens.count == 9


def test_of_several_usages_the_last_counts() -> None:
    tokens = Tokens()

    for number in (10, 20, 30):
        tokens.feed(b'data: {"choices": [], "usage": {"completion_tokens": %d}}\n\n' % number)

    assert tokens.count == 30


@pytest.mark.parametrize("event", [b"[" * 100_000, b'{"a":' * 100_000], ids=["lists", "objects"])
def test_an_event_nested_too_deep_to_read_carries_no_token(event: bytes) -> None:
    tokens = Tokens()

    assert not tokens.feed(b"data: " + event + b'"delta"\n\n')


@pytest.mark.parametrize("number", [b"-7", b"1" + b"0" * 400, b"1e400", b"true"])
def test_a_usage_that_is_no_believable_number_is_none(number: bytes) -> None:
    tokens = Tokens()

    tokens.feed(b'data: {"choices": [], "usage": {"completion_tokens": ' + number + b"}}\n\n")

    assert tokens.count == 0


def test_an_event_that_only_its_name_calls_a_delta_carries_a_token() -> None:
    tokens = Tokens()

    tokens.feed(b"event: text.delta\ndata: The\n\nevent: text.done\ndata: The\n\n")

    assert tokens.count == 1


def test_a_line_without_an_end_is_given_up_on_and_nothing_is_counted() -> None:
    tokens = Tokens()

    tokens.feed(WORD)
    for _ in range(17):
        tokens.feed(b"x" * (1 << 16))

    assert tokens.feed(b"\n" + WORD)
    assert tokens.count == 0
    assert not Tokens().feed(b"")


def test_a_compressed_stream_or_a_document_is_not_searched() -> None:
    assert is_searched({"content-type": "text/event-stream; charset=utf-8"})
    assert not is_searched({"content-type": "text/event-stream", "content-encoding": "gzip"})
    assert not is_searched({"content-type": "application/json"})
    assert not is_searched({})


def test_a_body_is_whole_after_its_length_or_its_end_and_a_compressed_stream_at_any_time() -> None:
    stream = {"content-type": "text/event-stream"}

    assert body_length(stream) == body_length({}) == math.inf
    assert body_length(stream | {"content-length": "17"}) == body_length({"content-length": "17"}) == 17
    assert body_length(stream | {"content-encoding": "gzip"}) == 0
    assert body_length(stream | {"content-encoding": "gzip", "content-length": "17"}) == 17
    assert body_length({"content-length": "17, 17"}) == body_length({"content-length": "9" * 20}) == math.inf


@pytest.mark.parametrize(
    "headers,seconds",
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "7", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 90.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:01 GMT"}, 0.0),
    ],
)
def test_the_wait_a_server_asks_for_is_read_in_each_of_its_forms(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert retry_after(headers, lambda: 10.0) == seconds


@given(st.text())
def test_no_word_of_a_server_raises(word: str) -> None:
    asked = retry_after({"retry-after": word, "retry-after-ms": word}, lambda: 0.0)

    assert asked is None or 0 <= asked < math.inf


@pytest.mark.parametrize("wait,header", [(0.2, "1"), (2.1, "3"), (None, None), (math.inf, None)])
def test_a_refusal_says_when_to_come_back_in_whole_seconds(wait: float | None, header: str | None) -> None:
    headers = refusal_headers(refused(wait))

    assert headers.get("retry-after") == header
    assert headers["x-should-retry"] == "false"


def test_a_refusal_has_the_shape_of_an_error_of_both_apis() -> None:
    body = json.loads(refusal_body(refused(1.0)))

    assert body["type"] == "error"
    assert body["error"]["code"] == "QueueFull"
    assert "full" in body["error"]["message"]
