"""Which waiting item is next where tenants share: nobody's thousand calls stand before another's first.

Floor: ground. No clock, no asyncio, no I/O.
Algorithm: start-time fair queueing (Goyal, Vin, Cheng: "Start-time fair queueing", SIGCOMM 1996) with
calls as the unit, so tags are whole numbers: rounds. Each priority has its own virtual time, the
highest tag that was started there, as in SFQ(D) for servers that run several at once (Jin, Chase,
Kaur: "Interposed proportional sharing", SIGMETRICS 2004). Were there one for all priorities, what is
urgent would drive it past those who wait below, and they would have credit with each newcomer.

One thing differs. The paper remembers an idle flow's finish tag; nothing is remembered here about who
has gone. Let it come back at the virtual time v, and two tenants with one call at a time starve the
queue of a third, whose next tag is v + 1. Let it come back at v + 1, the highest finish tag there can
be, behind that queue, and it gets a third of the slots where half is fair. So it comes back at v + 1
and wins the tie with those who were served in round v; other ties go to whoever was tagged first. Its
place is the paper's, but once one of round v + 1 has started, whoever comes later is behind all that
wait for it. No head is passed by another tenant more than twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, Protocol, Self, TypeAlias, TypeVar

from .priority_queue import PriorityQueue
from .running_tenants import RunningTenants
from .tenant_accounts import NO_TAG, Account, Entry, Level, Line, Tag

__all__ = ["AnyQueue", "FairQueue", "Tenanted"]

_SLACK: Final = 64  # keys that may have left a dict before it is worth building anew

_NOTHING: Final = (None, NO_TAG, False)


class Tenanted(Protocol):
    """What the queue reads of an item; none of it may change."""

    @property
    def tenant(self) -> str | None: ...
    @property
    def priority(self) -> float: ...
    @property
    def number(self) -> int: ...


ItemT = TypeVar("ItemT", bound=Tenanted)


class FairQueue(Generic[ItemT]):
    """Items by ascending priority; within one, tenants take turns; within a tenant, by ascending number.

    A `PriorityQueue` to whoever pushes, pops and discards, that also has to hear what `started` and `ended`: a
    start is what a tenant pays for, so neither a cancelled item nor one popped and dropped costs it anything.
    A tenant with nothing queued and nothing started at a priority is forgotten there, and starts level.
    One that comes back under its old number, before `ended` was told of it, has paid: it is in its old place.
    Tenants at the bound of `tenants` are passed over, and gain no credit by it.

    A number stands for one item for good. No two items in the queue may share one; items are never compared.

    Attributes:
        size: how many items are in it; to be read only.
        ready: how many tenants have an item that may leave; 0 means that `pop` would raise. To be read only.
        tenants: what each tenant runs, and the bound.

    Complexity: every change O(log n) amortised, in the tenants that wait and the items of the one concerned;
    `ordered` O(n log n). The dead never outnumber the living by more than a constant, so memory follows the
    items that are queued or running, whatever names tenants have had.
    Cancellation: not applicable; nothing here waits.
    Threads: one thread owns the queue; iteration and `ordered` work on copies and are safe from any.
    """

    __slots__ = (
        "_charged",
        "_drawn",
        "_heap",
        "_items",
        "_levels",
        "_lines",
        "_running",
        "_shed",
        "_tags",
        "ready",
        "size",
        "tenants",
    )

    def __init__(self, tenants: RunningTenants | None = None) -> None:
        self.size = self.ready = 0
        self.tenants = RunningTenants() if tenants is None else tenants
        self.tenants.join(self)
        self._items: dict[int, tuple[float, ItemT]] = {}
        self._lines: dict[str | None, Line] = {}
        self._levels: dict[float, Level] = {}
        self._heap: list[Entry] = []  # one live entry for each line that is ready
        self._charged: dict[int, Tag] = {}  # what each that started and has not ended paid
        self._running: set[int] = set()
        self._drawn: tuple[int | None, Tag, bool] = _NOTHING  # popped last: number, tag, paid before
        self._tags = 0
        self._shed = 0

    @classmethod
    def from_queue(cls, queue: AnyQueue[ItemT], running: Iterable[ItemT], tenants: RunningTenants) -> Self:
        """Take over from a plain queue, which is left as it is; `running` in the order in which they started."""
        self = cls(tenants)
        for item in running:
            self.started(item)
        for item in queue.ordered():
            self.push(item, item.priority, item.number)
        return self

    def push(self, item: ItemT, priority: float, number: int) -> bool:
        """Put `item` in its place. Always False: nothing joins a run.

        If it runs, it has given up its slot, as after `set_aside`.
        """
        if number in self._running:
            self.set_aside(item)
        self._items[number] = priority, item
        line, account = self._account(item.tenant, priority)
        heappush(line.heap, (priority, number))
        if not account.queued:
            account.claim = self._new_tag(account)
        account.queued += 1
        line.size += 1
        self.size += 1
        if line.entry is None or (priority, number) < (line.entry[0], line.entry[4]):
            self._enter(line, item.tenant)
        return False

    def pop(self) -> ItemT:
        """Take the first item that may leave; IndexError when there is none. If it starts, say `started` next."""
        _, round_, again, which, number = self._first()
        self._drawn = number, (round_, again, which), number in self._charged
        return self._take(number)

    def peek(self) -> ItemT | None:
        """The first item that may leave, left where it is; None when there is none."""
        return self._items[self._first()[4]][1] if self.ready else None

    def discard(self, number: int) -> None:
        """Take out the item with this number, which the caller knows to be in the queue.

        If it has paid and goes on without a slot, say `set_aside` next.
        """
        if (tag := self._charged.get(number)) is not None:
            self._drawn = number, tag, True
        self._take(number)

    def started(self, item: ItemT) -> None:
        """The item runs: popped just now, or without having been here, or again after it stepped aside."""
        number, (popped, tag, paid) = item.number, self._drawn
        self._drawn = _NOTHING
        line, account = self._account(item.tenant, item.priority)
        if number in self._charged:
            tag, paid = self._charged[number], True
        else:
            if popped != number:
                tag, paid = self._new_tag(account), False
            account.charged += 1
            self._charged[number] = tag
        if not paid:
            account.last = account.level.round = max(account.level.round, tag[0])
            account.claim = self._new_tag(account) if account.queued else None
        self._running.add(number)
        self.tenants.started(item.tenant)
        self._enter(line, item.tenant)

    def set_aside(self, item: ItemT) -> None:
        """The item has given up its slot, and starts again unless `ended` comes first; `push` it to let it wait.

        One that is not known to run has paid from now on.
        """
        if item.number not in self._running:
            self.started(item)
        self._running.remove(item.number)
        self.tenants.ended(item.tenant)

    def ended(self, item: ItemT) -> None:
        """A started item has ended. Nothing happens if it is queued again: then only its first run has.

        Nor if it has not started, or was taken out after it stepped aside: then nothing is known of it.
        """
        if item.number in self._items or item.number not in self._charged:
            return
        if item.number in self._running:
            self.set_aside(item)
        self._settle(item.number, item.tenant, item.priority)

    def reconsider(self, tenant: str | None) -> None:
        """This tenant has come to its bound, or is below it again."""
        if (line := self._lines.get(tenant)) is not None:
            self._enter(line, tenant)

    def reconsider_all(self) -> None:
        """The bound is another."""
        for tenant, line in self._lines.items():
            self._enter(line, tenant)

    def in_run(self) -> Iterator[ItemT]:
        """Empty: nothing joins a run."""
        return iter(())

    def ordered(self) -> list[ItemT]:
        """The items in the order in which they would leave; those whose tenants are at their bound last."""
        turns: dict[tuple[str | None, float], int] = {}
        keys = []
        for number, (priority, item) in sorted(self._items.copy().items(), key=lambda entry: entry[0]):
            tenant, turn = item.tenant, 0
            if (tag := self._charged.get(number)) is None:
                turn = turns[tenant, priority] = turns.get((tenant, priority), -1) + 1
                line = self._lines.get(tenant)
                account = None if line is None else line.accounts.get(priority)
                tag = NO_TAG if account is None else account.tag()
            # Within a round those for whom it is the first are before the others, who keep the order they had.
            place = priority, tag[0] + turn, -tag[0], tag[1:], number
            keys.append((self.tenants.at_bound(tenant), place, item))
        return [item for _, _, item in sorted(keys, key=lambda key: key[:2])]

    def __iter__(self) -> Iterator[ItemT]:
        """The items in no particular order, as they were when the iteration began."""
        return iter([item for _, item in self._items.copy().values()])

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"<FairQueue: {self.size} queued, {len(self._lines)} tenants, {self.ready} ready>"

    def check(self) -> None:
        """Assert every invariant; for tests."""
        items, lines, at_bound = self._items, self._lines, self.tenants.at_bound
        assert self.size == len(items) == sum(line.size for line in lines.values()), "the size is off"
        assert self._running <= self._charged.keys(), "one that runs has not been charged"
        assert self.ready == sum(line.entry is not None for line in lines.values()), "the number of ready is off"
        assert len(self._heap) <= 2 * self.ready + _SLACK, "the dead outnumber the living"
        for tenant, line in lines.items():
            own = sorted((priority, number) for number, (priority, item) in items.items() if item.tenant == tenant)
            assert len(own) == line.size
            assert len(line.heap) <= 2 * line.size + _SLACK, "the dead outnumber the living in a line"
            assert (line.entry is not None) == (line.size > 0 and not at_bound(tenant)), "ready or not"
            if line.entry is not None:
                assert (line.entry[0], line.entry[4]) == own[0], "the entry is not the head's"
                assert line.entry in self._heap
            assert line.accounts, "a tenant is remembered that has nothing here"
            for priority, account in line.accounts.items():
                assert account.queued == sum(at == priority for at, _ in own)
                assert account.queued or account.charged, "an account is remembered that has nothing here"
                assert (account.queued > 0) == (account.claim is not None), "a claim, or nobody waits"
                assert account.level is self._levels[priority]
        accounts = [account for line in lines.values() for account in line.accounts.values()]
        assert sum(account.charged for account in accounts) == len(self._charged)
        assert sum(level.members for level in self._levels.values()) == len(accounts)
        assert all(level.members for level in self._levels.values()), "a priority is remembered that nobody has"

    def _account(self, tenant: str | None, priority: float) -> tuple[Line, Account]:
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = Line()
        account = line.accounts.get(priority)
        if account is None:
            level = self._levels.get(priority)
            if level is None:
                level = self._levels[priority] = Level()
            account = line.accounts[priority] = Account(level)
            level.members += 1
        return line, account

    def _new_tag(self, account: Account) -> Tag:
        self._tags += 1
        return account.new_tag(self._tags)

    def _enter(self, line: Line, tenant: str | None) -> None:
        """Make the line's entry what it has to be now: its head's, or none."""
        entry: Entry | None = None
        if line.size and not self.tenants.at_bound(tenant):
            while line.heap[0][1] not in self._items:
                heappop(line.heap)
            priority, number = line.heap[0]
            if (tag := self._charged.get(number)) is None:
                account = line.accounts[priority]
                tag = account.claim = account.tag()
            entry = priority, *tag, number
        if entry == line.entry:
            return
        self.ready += (entry is not None) - (line.entry is not None)
        line.entry = entry
        if entry is not None:
            heappush(self._heap, entry)
        if len(self._heap) > 2 * self.ready + _SLACK:
            self._heap = [entry for entry in self._heap if self._lives(entry)]
            heapify(self._heap)

    def _lives(self, entry: Entry) -> bool:
        queued = self._items.get(entry[4])
        return queued is not None and self._lines[queued[1].tenant].entry is entry

    def _first(self) -> Entry:
        while not self._lives(self._heap[0]):
            heappop(self._heap)
        return self._heap[0]

    def _take(self, number: int) -> ItemT:
        priority, item = self._items.pop(number)
        line = self._lines[item.tenant]
        account = line.accounts[priority]
        account.queued -= 1
        line.size -= 1
        self.size -= 1
        if not account.queued:
            account.claim = None  # a place is held by waiting
        if len(line.heap) > 2 * line.size + _SLACK:
            line.heap = sorted({entry for entry in line.heap if entry[1] in self._items})
        if line.entry is not None and line.entry[4] == number:
            self._enter(line, item.tenant)
        self._settle(number, item.tenant, priority)
        return item

    def _settle(self, number: int, tenant: str | None, priority: float) -> None:
        """An item has left for good: forget what it paid, and whoever has nothing else here."""
        line = self._lines[tenant]
        account = line.accounts[priority]
        account.charged -= self._charged.pop(number, None) is not None
        if not (account.queued or account.charged):
            del line.accounts[priority]
            account.level.members -= 1
            if not account.level.members:
                del self._levels[priority]
            if not line.accounts:
                del self._lines[tenant]
        self._shed += 1
        if self._shed > len(self._items) + len(self._charged) + _SLACK:
            self._shrink()

    def _shrink(self) -> None:
        """Dicts and sets keep their room when keys leave: O(n), paid for by the n that have left."""
        self._shed = 0
        self._items, self._lines, self._levels = dict(self._items), dict(self._lines), dict(self._levels)
        self._charged, self._running = dict(self._charged), set(self._running)
        for line in self._lines.values():
            line.accounts = dict(line.accounts)


AnyQueue: TypeAlias = PriorityQueue[ItemT] | FairQueue[ItemT]
