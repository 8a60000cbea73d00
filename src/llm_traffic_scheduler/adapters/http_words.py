"""What an LLM's HTTP answers say that a scheduler wants to know, and how to say no in their words.

Floor: fourth. Pure: bytes and headers in, decisions out; no HTTP library is loaded.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from email.utils import mktime_tz, parsedate_tz
from typing import Final

from llm_traffic_scheduler import QueueTimeout, Rejected

__all__ = ["Tokens", "body_length", "impatient", "is_searched", "refusal_body", "refusal_headers", "retry_after"]

# An event that has not ended after so many bytes is nothing that starts with a token.
_LONGEST_EVENT: Final = 1 << 20

# A server that says it has sent more is not to be believed; no float can hold what a hostile one may say.
_MOST_TOKENS: Final = 1 << 40

# What need not be parsed: a chat completion's chunk with text in it, and one without usage. Inside of a JSON string
# these quotes would have backslashes before them.
_NO_USAGE: Final = re.compile(rb'"usage": ?null')
_SAYS: Final = re.compile(rb'"delta": ?\{"content": ?"[^"]')

# How Anthropic's messages end, and OpenAI's responses; OpenAI's chat completions end with "[DONE]", which is no event.
_LAST: Final = re.compile(rb"message_stop|response\.(?:completed|incomplete|failed)")


class Tokens:
    """Finds the first token in a stream of server-sent events, and how many there were in the end.

    The first token is not in the first byte, which is sent before it. It is in the first event whose type ends in
    "delta" (Anthropic's messages, OpenAI's responses), or the first chat completion's chunk with a delta that says
    more than a role.

    An event is no token: servers send several at once. So `count` is the output tokens of the last `usage` that the
    stream has, less those of hidden reasoning, which came before the first token, and at least the number of events
    that carried any; where a stream has no usage, that number alone, which is too low, and a pace from it too slow.
    Complexity: O(n) in the bytes; keeps at most one event, and gives up on one over a megabyte.
    """

    __slots__ = ("_ended", "_events", "_named", "_rest", "_usage")

    def __init__(self) -> None:
        self._rest: bytearray | None = bytearray()  # of a line; None: it was too long
        self._named = False  # the event that begins is called a delta
        self._events = 0  # that carried a token
        self._usage = 0
        self._ended = False

    def feed(self, chunk: bytes) -> bool:
        """Whether the first token has come, in `chunk` or before."""
        if self._rest is not None:
            if not self._rest and chunk.endswith(b"\n"):  # the usual case: whole events
                lines = chunk.splitlines()
            else:
                lines = self._whole_lines(chunk, self._rest)
            for line in lines:
                if line:
                    self._read(line)
        return self._events > 0

    def _whole_lines(self, chunk: bytes, rest: bytearray) -> list[bytes]:
        rest += chunk
        lines: list[bytes] = []
        if b"\n" in chunk or b"\r" in chunk:
            *lines, last = bytes(rest).splitlines(keepends=True)
            if last.endswith((b"\n", b"\r")):
                lines.append(last)
                last = b""
            rest = bytearray(last)
        self._rest = rest if len(rest) <= _LONGEST_EVENT else None
        return lines

    @property
    def count(self) -> int:
        """Output tokens, as far as they are known; 0 where an event was too long to be looked at."""
        return 0 if self._rest is None else max(self._events, self._usage)

    @property
    def ended(self) -> bool:
        """The stream's last event has come, after which clients read no further; or an event was too long to tell."""
        return self._ended or self._rest is None

    def _read(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            named, self._named = self._named, False
            # A null beside another mention may be a tool's, or a choice's: it says nothing of the event's own.
            has_usage = b"usage" in line and (_NO_USAGE.search(line) is None or line.count(b"usage") > 1)
            may_end = _LAST.search(line) is not None
            if not (has_usage or may_end) and (named or _SAYS.search(line) is not None):
                self._events += 1  # without a look into it
            elif has_usage or may_end or b"delta" in line:
                event = _object(line[5:])
                self._events += _carries_a_token(event, named)
                if has_usage:
                    self._usage = _output_tokens(event) or self._usage
                if may_end:
                    kind = event.get("type")
                    self._ended |= isinstance(kind, str) and _LAST.fullmatch(kind.encode()) is not None
            self._ended |= line[5:].strip() == b"[DONE]"
        elif line.startswith(b"event:"):
            name = line[6:].strip()
            self._named = name.endswith(b"delta") and name != b"message_delta"


def _object(value: bytes) -> dict[str, object]:
    try:
        event = json.loads(value.decode())  # of bytes it would look for the encoding first
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def _carries_a_token(event: dict[str, object], named: bool) -> bool:
    kind = event.get("type")
    if named or (isinstance(kind, str) and kind.endswith("delta")):
        return kind != "message_delta"  # Anthropic's last: why it stopped, and its usage
    choices = event.get("choices")
    return isinstance(choices, list) and any(_says_something(choice) for choice in choices)


def _says_something(choice: object) -> bool:
    delta = choice.get("delta") if isinstance(choice, dict) else None
    return isinstance(delta, dict) and any(value for key, value in delta.items() if key != "role")


def _output_tokens(event: dict[str, object]) -> int:
    """Those of an event's usage, in any of the three shapes; 0 where it has none."""
    whole = event.get("response")
    usage = event.get("usage") or (whole.get("usage") if isinstance(whole, dict) else None)
    if not isinstance(usage, dict):
        return 0
    details = usage.get("completion_tokens_details") or usage.get("output_tokens_details")
    hidden = details.get("reasoning_tokens") if isinstance(details, dict) else 0
    return max(0, _whole(usage.get("completion_tokens")) + _whole(usage.get("output_tokens")) - _whole(hidden))


def _whole(number: object) -> int:
    believable = isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= _MOST_TOKENS
    return number if believable else 0  # type: ignore[return-value]


def is_searched(headers: Mapping[str, str]) -> bool:
    """Whether the body is a stream of events that can be searched for a first token. One that is compressed cannot."""
    return _has_events(headers) and headers.get("content-encoding", "identity") == "identity"


def _has_events(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"


def body_length(headers: Mapping[str, str]) -> float:
    """Bytes as they are sent after which the body is whole, infinity where only its end tells.

    0 for a compressed stream of unknown length: clients leave it with its last event, which cannot be seen.
    """
    value = headers.get("content-length", "")
    if value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    return 0 if _has_events(headers) and not is_searched(headers) else math.inf


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


def impatient(error: QueueTimeout, patience: float) -> QueueTimeout:
    """The refusal of a request whose client did not wait as long as `queue_timeout` allows."""
    facts, taken, remedy = str(error).partition(" slots are taken: ")
    if "queue_timeout" not in remedy:
        facts = str(error)
    elif taken:
        facts += " slots are taken"
    return QueueTimeout(
        f"{facts}: the client's pool timeout of {patience:.3g} s ended the wait; "
        "httpx.Timeout(..., pool=None) lets queue_timeout decide",
        kind=error.kind,
        waited=error.waited,
        retry_after=error.retry_after,
    )
