"""What each tenant runs, who hears of it, and what is left of those who have gone.

Keeps the core's part of promise 14 for the counts of tenants.
"""

from __future__ import annotations

import sys

from llm_traffic_scheduler.core.running_tenants import RunningTenants


class Ear:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str | None] = []
        self.bounds = 0

    def reconsider(self, tenant: str | None) -> None:
        self.told.append(tenant)

    def reconsider_all(self) -> None:
        self.bounds += 1


def test_a_queue_hears_of_a_tenant_that_comes_to_its_bound_and_that_leaves_it() -> None:
    tenants, ear = RunningTenants(2), Ear()
    tenants.join(ear)

    told = []
    for change in (tenants.started, tenants.started, tenants.started, tenants.ended, tenants.ended, tenants.ended):
        change("a")
        told.append((tenants.running("a"), tenants.at_bound("a"), len(ear.told)))

    assert told == [(1, False, 0), (2, True, 1), (3, True, 1), (2, True, 1), (1, False, 2), (0, False, 2)]
    assert set(ear.told) == {"a"}


def test_another_bound_is_told_once_and_the_same_one_never() -> None:
    tenants, ear = RunningTenants(), Ear()
    tenants.join(ear)

    for bound in (None, 2, 2, 3, None):
        tenants.max_running_per_tenant = bound
        assert tenants.max_running_per_tenant == bound

    assert ear.bounds == 3


def test_ten_thousand_tenants_that_ran_at_once_leave_no_memory_behind() -> None:
    tenants = RunningTenants()
    for number in range(10_000):
        tenants.started(f"tenant {number}")
    before = tenants._counts

    tenants.ended("tenant 0")
    assert tenants._counts is before  # one that ends pays for no other
    for number in range(1, 10_000):
        tenants.ended(f"tenant {number}")

    assert sys.getsizeof(tenants._counts) < 10_000
