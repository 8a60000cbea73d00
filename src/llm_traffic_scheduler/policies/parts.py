"""What a policy made of other policies has to do for each of them.

Floor: second. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import fields
from typing import Final

from ..errors import ConfigError
from .base import LimitPolicy, Signals, check_policy

__all__ = ["check_parts", "each", "reads_of", "replica_of", "reset"]

_EVERYTHING: Final = frozenset(field.name for field in fields(Signals))


def check_parts(parts: Iterable[tuple[str, LimitPolicy]]) -> None:
    """ConfigError if a part is no policy, or one object would be told everything twice; parts come with their names."""
    seen: list[LimitPolicy] = []
    for name, part in parts:
        for policy in _with_its_parts(check_policy(name, part)):
            # By identity: policies of a user's own may compare as they like, and need not be hashable.
            if any(policy is other for other in seen):
                raise ConfigError(f"{name} brings in {policy!r} a second time: a policy object serves once")
            seen.append(policy)


def _with_its_parts(policy: LimitPolicy) -> Iterator[LimitPolicy]:
    yield policy
    for part in getattr(policy, "policies_inside", ()):
        yield from _with_its_parts(part)


def each(calls: Iterable[Callable[[], object]]) -> None:
    """Make all the calls, in order, whatever one of them raises; then raise that, the last one if there are several."""
    with ExitStack() as stack:
        for call in reversed(list(calls)):
            stack.callback(call)


def reads_of(policy: LimitPolicy) -> frozenset[str]:
    """The signals that the policy's `decide` looks at; all of them where it does not say."""
    return frozenset(getattr(policy, "reads", _EVERYTHING))


def reset(policy: LimitPolicy) -> None:
    """Tell the policy that it moves to another event loop, if it wants to know."""
    if callable(forget := getattr(policy, "reset", None)):
        forget()


def replica_of(policy: LimitPolicy) -> LimitPolicy:
    """An independent copy; the policy itself where there is none."""
    replica = getattr(policy, "replica", None)
    copied: LimitPolicy = policy if replica is None else replica()
    return copied
