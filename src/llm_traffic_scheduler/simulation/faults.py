"""What goes wrong with backends: wrappers around any of them, one fault each.

Floor: fourth. Real or virtual time.
A fault holds from `start` to `until`, in seconds of the running loop's clock; before and after, calls go to the backend
inside. Wrappers nest: `Hung(Throttling(BatchingServer(), start=60, until=90), start=300, until=420)`.
"""

import asyncio
import math
from typing import Final

from llm_traffic_scheduler import ConfigError

from .backend import Backend, Broken, OnFirstToken, Throttled


class _Fault:
    """A backend around a backend, with an interval in which the fault holds."""

    def __init__(self, backend: Backend, *, start: float = 0.0, until: float = math.inf) -> None:
        if not start < until:
            raise ConfigError(f"start must be before until ({until:g} s), got {start:g} s")
        self.backend: Final = backend
        self.start: Final = start
        self.until: Final = until

    def __repr__(self) -> str:
        return f"<{type(self).__name__} from {self.start:g} s to {self.until:g} s, around {self.backend!r}>"

    def _holds(self) -> bool:
        return self.start <= asyncio.get_running_loop().time() < self.until


class Hung(_Fault):
    """Nothing answers in the interval: calls that come in it, and answers that were due in it, are there after it.

    Cancellation: a call that is cancelled leaves at once.
    """

    async def serve(self, prompt_tokens: int, output_tokens: int, *, first_token: OnFirstToken | None = None) -> None:
        """As the backend inside, once it is no longer hung."""
        await self._released()
        try:
            await self.backend.serve(prompt_tokens, output_tokens, first_token=self._delayed(first_token))
        except Exception:
            await self._released()
            raise
        await self._released()

    def _delayed(self, first_token: OnFirstToken | None) -> OnFirstToken | None:
        if first_token is None:
            return None

        def tell() -> None:
            if not self._holds():
                first_token()
            elif self.until < math.inf:
                asyncio.get_running_loop().call_at(self.until, first_token)

        return tell

    async def _released(self) -> None:
        loop = asyncio.get_running_loop()
        if self._holds():
            # A future, and not only a sleep: `until` may be infinite.
            hung: asyncio.Future[None] = loop.create_future()
            timer = loop.call_at(self.until, _release, hung) if self.until < math.inf else None
            try:
                await hung
            finally:
                if timer is not None:
                    timer.cancel()


class TimingOut(_Fault):
    """Every call that comes in the interval ends alike: `TimeoutError` after `seconds`."""

    def __init__(self, backend: Backend, *, seconds: float = 30.0, start: float = 0.0, until: float = math.inf) -> None:
        super().__init__(backend, start=start, until=until)
        self.seconds: Final = seconds

    async def serve(self, prompt_tokens: int, output_tokens: int, *, first_token: OnFirstToken | None = None) -> None:
        """As the backend inside, or `TimeoutError`."""
        if self._holds():
            await asyncio.sleep(self.seconds)
            raise TimeoutError(f"no answer within {self.seconds:g} s")
        await self.backend.serve(prompt_tokens, output_tokens, first_token=first_token)


class FailingFast(_Fault):
    """Every call that comes in the interval fails with `Broken` after `seconds`, a millisecond by default."""

    def __init__(
        self, backend: Backend, *, seconds: float = 0.001, start: float = 0.0, until: float = math.inf
    ) -> None:
        super().__init__(backend, start=start, until=until)
        self.seconds: Final = seconds

    async def serve(self, prompt_tokens: int, output_tokens: int, *, first_token: OnFirstToken | None = None) -> None:
        """As the backend inside, or `Broken`."""
        if self._holds():
            await asyncio.sleep(self.seconds)
            raise Broken("500")
        await self.backend.serve(prompt_tokens, output_tokens, first_token=first_token)


class Throttling(_Fault):
    """A storm of 429: every call that comes in the interval is refused after `seconds`, with or without Retry-After."""

    def __init__(
        self,
        backend: Backend,
        *,
        retry_after: float | None = None,
        seconds: float = 0.05,
        start: float = 0.0,
        until: float = math.inf,
    ) -> None:
        super().__init__(backend, start=start, until=until)
        self.retry_after: Final = retry_after
        self.seconds: Final = seconds

    async def serve(self, prompt_tokens: int, output_tokens: int, *, first_token: OnFirstToken | None = None) -> None:
        """As the backend inside, or `Throttled`."""
        if self._holds():
            await asyncio.sleep(self.seconds)
            raise Throttled(self.retry_after)
        await self.backend.serve(prompt_tokens, output_tokens, first_token=first_token)


class Outlier(_Fault):
    """The first call that comes in the interval takes `seconds` more; all others are served as ever."""

    def __init__(
        self, backend: Backend, *, seconds: float = 300.0, start: float = 0.0, until: float = math.inf
    ) -> None:
        super().__init__(backend, start=start, until=until)
        self.seconds: Final = seconds
        self._came = False

    async def serve(self, prompt_tokens: int, output_tokens: int, *, first_token: OnFirstToken | None = None) -> None:
        """As the backend inside, once `seconds` later."""
        if self._holds() and not self._came:
            self._came = True
            await asyncio.sleep(self.seconds)
        await self.backend.serve(prompt_tokens, output_tokens, first_token=first_token)


class Outage(_Fault):
    """Good, bad, good again: at `start` every call that runs breaks, and until `until` so does each that comes.

    Those that come fail after `seconds`, as a connection does that nobody takes.
    """

    def __init__(self, backend: Backend, *, seconds: float = 1.0, start: float = 0.0, until: float = math.inf) -> None:
        super().__init__(backend, start=start, until=until)
        self.seconds: Final = seconds

    async def serve(self, prompt_tokens: int, output_tokens: int, *, first_token: OnFirstToken | None = None) -> None:
        """As the backend inside, or `Broken`."""
        if self._holds():
            await asyncio.sleep(self.seconds)
            raise Broken("connection refused")
        if not asyncio.get_running_loop().time() < self.start:
            return await self.backend.serve(prompt_tokens, output_tokens, first_token=first_token)
        try:
            async with asyncio.timeout_at(self.start) as breaking:
                await self.backend.serve(prompt_tokens, output_tokens, first_token=first_token)
        except TimeoutError:
            if not breaking.expired():
                raise
            raise Broken("connection reset") from None


def _release(hung: asyncio.Future[None]) -> None:
    if not hung.done():
        hung.set_result(None)
