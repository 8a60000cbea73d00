"""Jobs and variants that several scenarios share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import pytest

__all__ = ["KINDS", "each_order", "each_pair", "noting"]

KINDS: Final = ("interactive", "batch")

each_pair: Final = pytest.mark.parametrize(
    "kinds", [(first, second) for first in KINDS for second in KINDS], ids=lambda kinds: "-".join(kinds)
)
each_order: Final = pytest.mark.parametrize("cancel_first", [True, False], ids=["cancel first", "cancel second"])


def noting(log: list[str], name: str) -> Callable[[], asyncio.Future[None]]:
    """A job that writes its name into `log` when it is called, and is done."""

    def job() -> asyncio.Future[None]:
        log.append(name)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    return job
