"""What the fair queue keeps of each tenant: its turns at each priority, and its own line.

Floor: ground. What a turn is, and why, says `fair_queue`.
"""

from __future__ import annotations

from typing import Final, TypeAlias

__all__ = ["NO_TAG", "Account", "Entry", "Level", "Line", "Tag"]

Tag: TypeAlias = tuple[int, bool, int]  # round, whether served in the one before, which tag it is in all
Entry: TypeAlias = tuple[float, int, bool, int, int]  # priority, tag, number

NO_TAG: Final = (1, False, 0)


class Level:
    """One priority: its virtual time, and how many tenants have something queued or charged there."""

    __slots__ = ("members", "round")

    def __init__(self) -> None:
        self.round = self.members = 0


class Account:
    """One tenant at one priority. Goes when it has nothing queued and nothing charged, and what it had with it."""

    __slots__ = ("charged", "claim", "last", "level", "queued")

    def __init__(self, level: Level) -> None:
        self.level = level
        self.queued = 0
        self.charged = 0  # started and not ended: running, stepped aside, or queued again
        self.last = -1  # the round of its last start
        # The head's tag. It is the account's until a start uses it up: who follows a cancelled head inherits it.
        self.claim: Tag | None = None

    def new_tag(self, which: int) -> Tag:
        """The tag of a head that becomes one now."""
        now = self.level.round
        return now + 1, self.last == now, which

    def tag(self) -> Tag:
        """The claim as it stands now: one that was passed by while the tenant was at its bound is no credit."""
        claim = self.claim or NO_TAG
        return claim if claim[0] >= self.level.round else self.new_tag(claim[2])


class Line:
    """One tenant's queue, by priority and number; `entry` stands for its head while that may leave."""

    __slots__ = ("accounts", "entry", "heap", "size")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int]] = []
        self.size = 0
        self.accounts: dict[float, Account] = {}
        self.entry: Entry | None = None
