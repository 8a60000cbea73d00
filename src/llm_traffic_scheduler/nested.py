"""Calls inside calls: who shares a slot with whom, so that nothing waits for itself.

Floor: third.

A call that submits to its own scheduler and waits for the answer holds a slot while it waits for one: with as many such
calls as there are slots, everything would stand still. So the slot of a call is lent, to one call inside it at a time:
at once if that one was submitted in the same task, whose code stands still meanwhile; and to one from a child task,
where the caller goes on, only if it may not start in a slot of its own. Who uses a lent slot can lend it on. A slot
that is lent goes back to the scheduler when both have ended, in whatever order they do.

A call in a lent slot is no arrival, no sample, and in no total. One that waits, for a slot of its own or for a lent
one, is counted when it gets one of its own. One that gives its slot up, whosever it was (`giving_way.py`), counts from
then on, also in a slot that is lent to it after that.

What waits may use the slot of any call around it, not of the nearest only: that one may have given its slot up, or have
ended, or wait for a slot itself.
"""

from __future__ import annotations

from asyncio import current_task
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from .call import Call
from .core.admission import AWAY, LENT_ON, QUEUED, RUNNING
from .surroundings import Scope, lineage

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

__all__ = [
    "admit_inside",
    "give_back",
    "guests",
    "guests_elsewhere",
    "host_of",
    "lends",
    "lose",
    "owner_of",
    "part",
    "pass_on",
    "seek_again",
    "step_out",
    "take_own",
    "want_no_more",
]


def host_of(node: Call | Scope | None, home: Dispatcher) -> Call | None:
    """The nearest call around that belongs to `home` and goes on, be it without a slot at present."""
    return next(_hosts_of(node, home), None)


def owner_of(call: Call) -> Call:
    """Whose slot it is that the call uses: its own, or that of who lent it, or lent it on."""
    while call.nesting is not None and call.nesting.lender is not None:
        call = call.nesting.lender
    return call


def lends(host: Call) -> bool:
    """The host has a slot that nobody else uses now."""
    idle = host.state == RUNNING and (host.nesting is None or host.nesting.guest is None)
    return idle and owner_of(host).state in (RUNNING, LENT_ON)


def admit_inside(home: Dispatcher, call: Call, host: Call) -> None:
    """Let a call start or wait that was submitted from inside `host`.

    Raises:
        QueueTimeout: it can do neither. A full queue is no reason, for what it waits for may be lent to it.
    """
    if host.task is not None and host.task is current_task(home.loop) and lends(host):
        home.admission.give_number(call)
        _lend(host, call)
        return
    call.nest().observe, call.observed = call.observed, False
    _seek(home, call)


def _seek(home: Dispatcher, call: Call) -> None:
    """Take a slot of its own or that of a host, or wait for both.

    Raises:
        QueueTimeout: it may not wait.
    """
    state = home.admission.offer_as(call, True)
    if state == RUNNING:
        take_own(home, call)
        home.admitted(call)
        return
    hosts = tuple(_hosts_of(call.parent, home))
    host = next(filter(lends, hosts), None)
    if host is not None:
        if state == QUEUED:
            home.admission.withdraw(call)
        _lend(host, call)
    else:
        if state == QUEUED:
            home.admission.aside[call] = True
            _want(call, hosts)
        home.admitted(call)


def seek_again(home: Dispatcher, call: Call, now: float) -> None:
    """As `_seek`, for a call that gave its slot up; it keeps its place."""
    home.admission.come_back(call, now)
    hosts = tuple(_hosts_of(call.parent, home))
    _want(call, hosts)
    home.settle(now)
    if call.state == QUEUED and (host := next(filter(lends, hosts), None)) is not None:
        pass_on(home, host)


def _hosts_of(node: Call | Scope | None, home: Dispatcher) -> Iterator[Call]:
    """Whose slot may be used here, the nearest first.

    Not beyond a call of the same task that runs in a slot of its own: if what used the slot of one further out gave it
    up, the one between would go on, and end, in the middle of that.
    """
    task = current_task(home.loop)
    for each in lineage(node):
        if isinstance(each, Call) and each.home is home and each.state in (RUNNING, QUEUED, AWAY):
            yield each
            if task is not None and each.task is task and each.state == RUNNING:
                return


def _want(call: Call, hosts: tuple[Call, ...]) -> None:
    if hosts:
        call.nest().hosts = hosts
        for host in hosts:
            host.nest().wanting[call] = None


def take_own(home: Dispatcher, call: Call) -> None:
    """A nested call that has got a slot of its own is a call like any other from here on."""
    nesting = call.nesting
    if nesting is not None:
        want_no_more(call)
        if nesting.observe is not None:
            call.observed, nesting.observe = nesting.observe, None
            home.count_arrival(call, call.started_at)


def want_no_more(call: Call) -> None:
    """The call waits for nobody's slot but its own, if for any."""
    nesting = call.nesting
    if nesting is not None and nesting.hosts:
        for host in nesting.hosts:
            host.nest().wanting.pop(call, None)
        nesting.hosts = ()


def give_back(home: Dispatcher, call: Call) -> None:
    """The call needs the lent slot no more."""
    nesting = call.nesting
    assert nesting is not None
    lender, nesting.lender = nesting.lender, None
    assert lender is not None
    lender.nest().guest = None
    pass_on(home, lender)


def part(call: Call) -> None:
    """The call ends while who lent it the slot is without."""
    nesting = call.nesting
    if nesting is not None and nesting.lender is not None:
        nesting.lender.nest().guest = None
        nesting.lender = None


def step_out(call: Call) -> None:
    """The call ends in a lent slot that it has lent on: who uses it goes on as a guest of the lender.

    Were it to stay in between, tasks that start tasks would make a chain that only grows.
    """
    nesting = call.nesting
    assert nesting is not None
    lender, guest = nesting.lender, nesting.guest
    assert lender is not None
    assert guest is not None
    nesting.lender = nesting.guest = None
    guest.nest().lender, lender.nest().guest = lender, guest


def pass_on(home: Dispatcher, host: Call) -> None:
    """The host's slot is back with it: lend it to the next who wants it, or let go of it if the host has ended."""
    nesting = host.nesting
    if nesting is None:
        return
    while nesting.wanting and lends(host):
        call = next(iter(nesting.wanting))
        want_no_more(call)
        if not call.left:
            counts = home.admission.aside[call] is False
            home.admission.withdraw(call)
            if counts:
                home.admission.keep_away(call)
            _lend(host, call)
            call.waiter.set_result(None)  # type: ignore[union-attr]
            home.thinned()
    if host.state == LENT_ON and nesting.guest is None:
        assert nesting.outcome is not None
        home.let_go(host, nesting.outcome)


def lose(home: Dispatcher, host: Call) -> None:
    """The host ends without its slot, or before it knows that it is back; so do those that shared it in its task."""
    while host.nesting is not None and (guest := host.nesting.guest) is not None and guest.state == AWAY:
        part(guest)
        home.lose(guest)
        host = guest


def guests(hosts: Iterable[Call]) -> Iterator[Call]:
    """Calls in the slots of these."""
    for host in hosts:
        call = host
        while call.nesting is not None and call.nesting.guest is not None:
            call = call.nesting.guest
            yield call


def guests_elsewhere(hosts: Iterable[Call]) -> list[Call]:
    """Calls in the slots of these that run in tasks of their own, where a cancel of the host's task does not reach."""
    found = []
    for guest in guests(hosts):
        assert guest.nesting is not None
        assert guest.nesting.lender is not None
        if guest.task is None or guest.task is not guest.nesting.lender.task:  # None: it does not know of its slot yet
            found.append(guest)
    return found


def _lend(host: Call, call: Call) -> None:
    if call not in call.home.admission.away:
        call.observed = False
    call.nest().lender = host
    call.nest().observe = None
    host.nest().guest = call
    call.started_at = call.home.clock()
    call.state = RUNNING
