"""What an LLM's HTTP answers say that a scheduler wants to know, and how to say no in their words.

Floor: fourth. Pure: bytes and headers in, decisions out; no HTTP library is loaded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from email.utils import mktime_tz, parsedate_tz
from typing import Final

from llm_traffic_scheduler import Rejected

__all__ = ["FirstDelta", "is_event_stream", "refusal_body", "refusal_headers", "retry_after"]

# An event that has not ended after so many bytes is nothing that starts with a token.
_LONGEST_EVENT: Final = 1 << 20


class FirstDelta:
    """Finds the first server-sent event that carries a token: not the first byte, which is sent before the first token.

    That is an event whose type ends in "delta" (Anthropic's messages, OpenAI's responses), or a chat completion's chunk
    with a delta that says more than a role. `feed` returns True once it has come; then it need not be fed any more.
    Complexity: O(n) in the bytes up to the first token; keeps at most one event, and gives up on one over a megabyte.
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest: bytearray | None = bytearray()

    def feed(self, chunk: bytes) -> bool:
        """Whether the first token is in `chunk`, or in what came before it."""
        rest = self._rest
        if rest is None:
            return False
        rest += chunk
        *lines, last = bytes(rest).splitlines(keepends=True) or [b""]
        if last.endswith((b"\n", b"\r")):
            lines.append(last)
            last = b""
        if any(_carries_a_token(line) for line in lines):
            return True
        self._rest = bytearray(last) if len(last) <= _LONGEST_EVENT else None
        return False


def _carries_a_token(line: bytes) -> bool:
    name, _, value = line.strip().partition(b":")
    value = value.strip()
    if name == b"event":
        return value.endswith(b"delta")
    if name != b"data" or b"delta" not in value:
        return False
    try:
        event = json.loads(value)
    except ValueError:
        return False
    if not isinstance(event, dict):
        return False
    if isinstance(event.get("type"), str) and event["type"].endswith("delta"):
        return True
    choices = event.get("choices")
    return isinstance(choices, list) and any(_says_something(choice) for choice in choices)


def _says_something(choice: object) -> bool:
    delta = choice.get("delta") if isinstance(choice, dict) else None
    return isinstance(delta, dict) and any(value for key, value in delta.items() if key != "role")


def is_event_stream(headers: Mapping[str, str]) -> bool:
    """Whether the body can be searched for a first token. One that is compressed cannot."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "text/event-stream" and headers.get("content-encoding", "identity") == "identity"


def retry_after(headers: Mapping[str, str], wall_clock: Callable[[], float]) -> float | None:
    """Seconds the server asks us to wait: `retry-after-ms`, or `Retry-After` in seconds or as a date; None: no word."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if 0 <= seconds < math.inf:
            return seconds
    date = parsedate_tz(headers.get("retry-after", ""))
    try:
        return None if date is None else max(0.0, mktime_tz(date) - wall_clock())
    except (OverflowError, ValueError):
        return None


def refusal_headers(error: Rejected) -> dict[str, str]:
    """Headers of a 503: come back later, but not on your own accord.

    An SDK's retry would queue again behind those that have been refused less often; `x-should-retry` is the word that
    both OpenAI's and Anthropic's heed.
    """
    headers = {"content-type": "application/json", "x-should-retry": "false"}
    if error.retry_after is not None and error.retry_after < math.inf:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    return headers


def refusal_body(error: Rejected) -> bytes:
    """Body of a 503, in the shape of both APIs' errors."""
    detail = {"type": "overloaded_error", "code": type(error).__name__, "message": str(error), "param": None}
    return json.dumps({"type": "error", "error": detail}).encode()
