"""A backend whose callers tell the scheduler all that a good client would: first token, tokens, throttling.

Floor: fourth. Real or virtual time.
"""

from typing import Final

from llm_traffic_scheduler import current_slot

from .backend import Backend, OnFirstToken, Throttled


class Reporting:
    """The backend inside; where a call has a slot, its `first_token`, `tokens` and `throttled` are called."""

    def __init__(self, backend: Backend) -> None:
        self.backend: Final = backend

    def __repr__(self) -> str:
        return f"<Reporting {self.backend!r}>"

    async def serve(self, prompt_tokens: int, output_tokens: int, *, first_token: OnFirstToken | None = None) -> None:
        """As the backend inside."""
        if (slot := current_slot()) is None:
            await self.backend.serve(prompt_tokens, output_tokens, first_token=first_token)
            return

        def tell() -> None:
            slot.first_token()
            if first_token is not None:
                first_token()

        try:
            await self.backend.serve(prompt_tokens, output_tokens, first_token=tell)
        except Throttled as refusal:
            slot.throttled(refusal.retry_after)
            raise
        slot.tokens(max(1, output_tokens))
