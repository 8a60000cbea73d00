"""What the bytes of a response, and the time that nobody read them, say of its call.

Floor: fourth. The same for a body that is awaited and for one that a thread reads.
"""

from __future__ import annotations

import asyncio
from typing import Final

from llm_traffic_scheduler import Slot

from .http_rules import Response
from .http_words import Tokens, body_length, is_searched

__all__ = ["BodyAccount"]

# Seconds that are not worth telling of: what a client needs to look at a few chunks.
_THOUGHTLESS: Final = 0.001


class BodyAccount:
    """What a body's bytes, and the time that nobody read it, say of its call."""

    __slots__ = ("_came", "_headers", "_slot", "_tokens", "thought")

    def __init__(self, slot: Slot, response: Response, *, searched: bool) -> None:
        self._headers = response.headers
        self._came = 0  # bytes
        self._slot = slot
        self._tokens = Tokens() if searched and is_searched(self._headers) else None
        self.thought = 0.0  # seconds that the slot has not been told of

    def came(self, chunk: bytes) -> None:
        """The reader has these bytes."""
        self._came += len(chunk)
        if self._tokens is not None and self._tokens.feed(chunk) and self._slot.first_token_at is None:
            self._tell_thought()
            self._slot.first_token()

    def unread(self) -> asyncio.CancelledError | None:
        """How the call ends if its body is closed now: one that is not whole says nothing of how long it takes."""
        ended = self._tokens is not None and self._tokens.ended
        return None if ended or self._came >= body_length(self._headers) else asyncio.CancelledError()

    def close(self) -> None:
        """The call is about to end."""
        self._tell_thought()
        if self._tokens is not None:
            self._slot.tokens(self._tokens.count)

    def _tell_thought(self) -> None:
        if self.thought > _THOUGHTLESS:
            self._slot.reader_away(self.thought)
            self.thought = 0.0
