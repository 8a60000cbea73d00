"""What a policy made of other policies has to do for each of them.

Floor: second. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

from ..errors import ConfigError
from .base import LimitPolicy, check_policy

__all__ = ["check_parts", "each", "with_its_parts"]


def check_parts(parts: Iterable[tuple[str, LimitPolicy]]) -> None:
    """ConfigError if a part is no policy, or one object would be told everything twice; parts come with their names."""
    seen: list[LimitPolicy] = []
    for name, part in parts:
        for policy in with_its_parts(check_policy(name, part)):
            # By identity: policies of a user's own may compare as they like, and need not be hashable.
            if any(policy is other for other in seen):
                raise ConfigError(f"{name} brings in {policy!r} a second time: a policy object serves once")
            seen.append(policy)


def with_its_parts(policy: LimitPolicy) -> Iterator[LimitPolicy]:
    """The policy, those that it is made of, and those that they are made of."""
    yield policy
    for part in getattr(policy, "policies_inside", ()):
        yield from with_its_parts(part)


def each(calls: Iterable[Callable[[], object]]) -> None:
    """Make all the calls, in order, whatever one of them raises; then raise that, the last one if there are several."""
    with ExitStack() as stack:
        for call in reversed(list(calls)):
            stack.callback(call)
