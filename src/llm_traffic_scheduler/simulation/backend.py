"""What every simulated backend has in common: how it is called, and how it refuses.

Floor: fourth. Shapes only.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

OnFirstToken: TypeAlias = Callable[[], None]
"""Called once, when the first token of an answer is there; not at all if none comes, or the caller has left."""


class Backend(Protocol):
    """Serves calls of known length, in real or virtual time, whatever the running loop has."""

    async def serve(self, prompt_tokens: int, output_tokens: int, *, first_token: OnFirstToken | None = None) -> None:
        """Return once the last token is there.

        Raises: `Throttled`, `Overloaded`, `Broken` or `TimeoutError`, as the backend is; `ValueError` for a call that
        it could never serve.
        """
        ...


class Throttled(Exception):
    """Status 429: the caller shall come back later.

    Attributes:
        retry_after: seconds until it may, as the header says; None if the backend does not say.
    """

    def __init__(self, retry_after: float | None = None) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after

    def __str__(self) -> str:
        return "429" if self.retry_after is None else f"429, Retry-After: {self.retry_after:g}"


class Overloaded(Exception):
    """Status 529, or 503: the backend has more work than it can take, whoever asks."""


class Broken(Exception):
    """The connection broke, or status 500: no answer, and nothing said about load."""
