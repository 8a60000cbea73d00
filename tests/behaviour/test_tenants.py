"""Tenants take turns: promise 2 of SEMANTICS.md where tenants are named, through the front door."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest

from llm_traffic_scheduler import QueueTimeout, current_slot, traffic
from tests.support import Held, account, hold, make_scheduler, noop, settle


async def order(held: list[Held], log: list[str]) -> str:
    """Let each call end as soon as it runs; the names in the order in which they started."""
    while waiting := [each for each in held if not each.task.done()]:
        for each in waiting:
            if each.started:
                each.release()
        await settle()
    return "".join(log)


@pytest.mark.parametrize("kind", ["interactive", "batch"])
async def test_one_call_of_a_tenant_is_next_although_another_has_hundreds(kind: str) -> None:
    scheduler = make_scheduler(max_concurrency=2, batch_max_concurrency=1)
    other = hold(scheduler)
    log: list[str] = []
    calls = [hold(scheduler, kind, name="a", log=log, tenant="a") for _ in range(300)]
    await settle()
    calls += [hold(scheduler, kind, name="b", log=log, tenant="b") for _ in range(3)]
    await settle()

    names = await order(calls, log)

    assert names == "abababa" + "a" * 296
    other.release()
    await other.task
    scheduler.check()


async def test_a_tenant_that_cancels_all_its_calls_has_lost_nothing() -> None:
    scheduler = make_scheduler(max_concurrency=2, batch_max_concurrency=1)
    log: list[str] = []
    calls = [hold(scheduler, "batch", name="a", log=log, tenant="a") for _ in range(4)]
    await settle()
    doomed = [hold(scheduler, "batch", name="x", log=log, tenant="b") for _ in range(50)]
    await settle()

    for each in doomed:
        each.cancel()
    await asyncio.gather(*(each.task for each in doomed), return_exceptions=True)
    calls += [hold(scheduler, "batch", name="b", log=log, tenant="b") for _ in range(3)]
    await settle()

    assert await order(calls, log) == "abababa"
    scheduler.check()


async def test_two_tenants_with_one_call_at_a_time_do_not_starve_a_third_that_waits() -> None:
    scheduler = make_scheduler(max_concurrency=2, batch_max_concurrency=1)
    log: list[str] = []

    async def work(tenant: str) -> None:
        log.append(tenant)
        await asyncio.sleep(1)

    async def one_at_a_time(tenant: str) -> None:
        for _ in range(10):
            await scheduler.submit("batch", work, tenant, tenant=tenant)

    async with asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(scheduler.submit("batch", work, "a", tenant="a"))
        group.create_task(one_at_a_time("b"))
        group.create_task(one_at_a_time("c"))

    assert 6 <= log[:21].count("a") <= 8
    scheduler.check()


@pytest.mark.parametrize("ending", ["returns", "fails", "cancelled"])
async def test_a_tenants_call_that_gives_a_lent_slot_up_ends_like_any_other(ending: str) -> None:
    scheduler = make_scheduler(max_running_per_tenant=2)
    back = asyncio.Event()

    async def child() -> None:
        slot = current_slot()
        assert slot is not None
        async with slot.released():
            await back.wait()
        if ending == "fails":
            raise ZeroDivisionError

    async def parent() -> BaseException | None:
        task = asyncio.create_task(scheduler.submit("batch", child, tenant="child"))
        await settle()
        if ending == "cancelled":
            task.cancel()
        back.set()
        return (await asyncio.gather(task, return_exceptions=True))[0]

    result = await scheduler.submit("batch", parent, tenant="parent")

    expected = {"returns": type(None), "fails": ZeroDivisionError, "cancelled": asyncio.CancelledError}
    assert type(result) is expected[ending]
    totals = account(scheduler, "batch")
    assert (totals.submitted, totals.completed) == (2, 2 if ending == "returns" else 1)
    await scheduler.drain()
    scheduler.check()


async def test_a_call_inside_of_another_is_of_the_same_tenant_unless_it_says_otherwise() -> None:
    scheduler = make_scheduler(max_concurrency=4)
    seen: list[str | None] = []

    async def note() -> None:
        slot = current_slot()
        seen.append(None if slot is None else slot.tenant)

    async def agent() -> None:
        await scheduler.submit("batch", note)
        await asyncio.gather(scheduler.submit("batch", note), scheduler.submit("batch", note, tenant="other"))

    await scheduler.submit("batch", agent, tenant="acme")
    assert seen == ["acme", "acme", "other"]


@pytest.mark.parametrize("around", [None, "somebody"])
@pytest.mark.parametrize("way", ["submit", "block", "map", "map in line", "submit afterwards", "block afterwards"])
async def test_what_is_inside_of_a_tenants_call_is_the_tenants_whatever_is_around_that(
    way: str, around: str | None
) -> None:
    scheduler = make_scheduler(max_concurrency=4, max_queued_batch=7 if way == "map in line" else None)
    call_is_over = asyncio.Event()

    async def whose(*item: int) -> str | None:
        slot = current_slot()
        assert slot is not None
        return slot.tenant

    async def ask() -> str | None:
        if way.startswith("map"):
            [tenant] = [tenant async for tenant in scheduler.map("batch", whose, [1])]
            return tenant
        if way.endswith("afterwards"):
            await call_is_over.wait()
        with traffic("batch") if way.startswith("block") else nullcontext():
            return await scheduler.submit("batch", whose)

    async def agent() -> asyncio.Task[str | None]:
        asking = asyncio.create_task(ask())
        if not way.endswith("afterwards"):
            await asking
        return asking

    with traffic("batch", tenant=around):
        asking = await scheduler.submit("batch", agent, tenant="acme")
    call_is_over.set()

    assert await asking == "acme"


async def test_who_waits_for_its_tenant_is_told_so_and_so_is_the_operator() -> None:
    scheduler = make_scheduler(max_concurrency=4, max_running_per_tenant=1)
    held = [hold(scheduler, tenant="acme"), hold(scheduler)]
    await settle()

    with pytest.raises(QueueTimeout, match="1 calls of tenant 'acme' run, as many as max_running_per_tenant allows"):
        await scheduler.submit("interactive", noop, tenant="acme", queue_timeout=0)
    with pytest.raises(QueueTimeout, match="1 calls without a tenant run"):
        await scheduler.submit("batch", noop, queue_timeout=0)
    assert scheduler.snapshot().tenants_at_bound == 2
    assert "2 tenants run as many calls as max_running_per_tenant allows" in scheduler.explain()
    for each in held:
        each.release()
