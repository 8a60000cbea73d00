"""What each tenant runs, and who may run no more.

Floor: ground. The bound is on both kinds together, the queues are one for each kind: what is counted
here is theirs in common, and they hear of a tenant that comes to its bound or leaves it.
"""

from __future__ import annotations

from typing import Final, Protocol

__all__ = ["RunningTenants", "Sharing"]

_SLACK: Final = 64  # tenants that may have left before the dict is worth building anew


class Sharing(Protocol):
    """A queue that passes over tenants at their bound."""

    def reconsider(self, tenant: str | None) -> None:
        """This tenant has come to its bound, or is below it again."""
        ...

    def reconsider_all(self) -> None:
        """The bound is another."""
        ...


class RunningTenants:
    """How many calls each tenant runs, in all queues that share this, and the bound on it.

    Complexity: `started` and `ended` O(1), and what `reconsider` costs each queue where the bound is reached or left;
    `number_at_bound` O(t) for t tenants that run something.
    Threads: one owns it.
    """

    __slots__ = ("_bound", "_counts", "_queues", "_shed")

    def __init__(self, max_running_per_tenant: int | None = None) -> None:
        self._bound = max_running_per_tenant
        self._counts: dict[str | None, int] = {}
        self._queues: list[Sharing] = []
        self._shed = 0

    @property
    def max_running_per_tenant(self) -> int | None:
        """None: no bound. Setting it costs O(t log t) for t tenants that wait; what runs goes on."""
        return self._bound

    @max_running_per_tenant.setter
    def max_running_per_tenant(self, bound: int | None) -> None:
        if bound != self._bound:
            self._bound = bound
            for queue in self._queues:
                queue.reconsider_all()

    def running(self, tenant: str | None) -> int:
        """What the tenant runs."""
        return self._counts.get(tenant, 0)

    @property
    def number_at_bound(self) -> int:
        """Tenants that may start nothing before one of their calls has ended. Threads: any."""
        return 0 if self._bound is None else sum(number >= self._bound for number in list(self._counts.values()))

    def at_bound(self, tenant: str | None) -> bool:
        """The tenant may start nothing before one of its calls has ended."""
        return self._bound is not None and self._counts.get(tenant, 0) >= self._bound

    def join(self, queue: Sharing) -> None:
        """Tell this queue when a tenant reaches the bound or leaves it."""
        self._queues.append(queue)

    def started(self, tenant: str | None) -> None:
        """The tenant runs one call more."""
        was_at_bound = self.at_bound(tenant)
        self._counts[tenant] = self._counts.get(tenant, 0) + 1
        if not was_at_bound and self.at_bound(tenant):
            self._tell(tenant)

    def ended(self, tenant: str | None) -> None:
        """The tenant runs one call less."""
        was_at_bound = self.at_bound(tenant)
        self._counts[tenant] -= 1
        if not self._counts[tenant]:
            del self._counts[tenant]
            self._shed += 1
            if self._shed > len(self._counts) + _SLACK:
                self._counts, self._shed = dict(self._counts), 0  # a dict that shrinks keeps its room
        if was_at_bound and not self.at_bound(tenant):
            self._tell(tenant)

    def _tell(self, tenant: str | None) -> None:
        for queue in self._queues:
            queue.reconsider(tenant)
