"""Items of tenants that wait in a fair queue, and those that run."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from llm_traffic_scheduler.core.fair_queue import FairQueue
from llm_traffic_scheduler.core.running_tenants import RunningTenants

__all__ = ["Item", "Line"]


@dataclass(eq=False, slots=True, weakref_slot=True)
class Item:
    """Cannot be compared: a queue that tried would raise."""

    tenant: str | None
    number: int
    priority: float = 0


class Line:
    """A queue, its items by the names of their tenants, and those that run."""

    def __init__(self, max_running_per_tenant: int | None = None) -> None:
        self.tenants = RunningTenants(max_running_per_tenant)
        self.queue: FairQueue[Item] = FairQueue(self.tenants)
        self.running: list[Item] = []
        self.numbers = count(1)

    def push(self, tenants: str | list[str | None], priority: float = 0) -> list[Item]:
        """One item for each tenant; a word is a tenant per letter."""
        items = [Item(tenant, next(self.numbers), priority) for tenant in tenants]
        for item in items:
            self.queue.push(item, item.priority, item.number)
        self.queue.check()
        return items

    def start(self) -> Item:
        item = self.queue.pop()
        self.queue.started(item)
        self.queue.check()
        self.running.append(item)
        return item

    def end(self, item: Item) -> None:
        self.running.remove(item)
        self.queue.ended(item)
        self.queue.check()

    def turns(self, number: int) -> str:
        """Tenants of the next starts, one slot: each ends before the next one starts."""
        names = ""
        for _ in range(number):
            item = self.start()
            names += item.tenant or "-"
            self.end(item)
        return names

    def drain(self) -> str:
        return self.turns(len(self.queue))
