"""Which event loop a scheduler lives on, and how it moves to another, or to a forked process.

Floor: third.
"""

from __future__ import annotations

import asyncio
from threading import get_ident
from typing import TYPE_CHECKING, Final, NoReturn
from weakref import WeakValueDictionary

from .call import Call
from .core.admission import GONE
from .dispatcher import Dispatcher
from .errors import ConfigError, SchedulerMisuse
from .forks import survive_forks
from .listeners import Listeners
from .loop_end import abandon
from .policies.base import LimitPolicy, remembers, reset
from .policies.parts import with_its_parts
from .settings import Settings
from .snapshot import Tally
from .surroundings import around, lineage

if TYPE_CHECKING:
    from .shutdown import Shutdown

__all__ = ["LoopBound"]

# By the policy's id, which nobody else has as long as its scheduler holds it. Module state, because a policy may come
# to two schedulers that know nothing of each other; weak, because whoever is gone has freed it.
_serves: Final[WeakValueDictionary[int, LoopBound]] = WeakValueDictionary()


class LoopBound:
    """What of a scheduler stays when its loop goes: name, settings, policy, totals, listeners. The rest is its home."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self._settings = settings
        self._tallies = {"interactive": Tally(), "batch": Tally()}
        self._listeners = Listeners(name)
        self._shutdown: Shutdown | None = None
        self._policy = policy = settings.make_policy()
        self._claim(policy)
        self._home = self._new_home(None)
        survive_forks(self)

    def _on(self, loop: asyncio.AbstractEventLoop) -> Dispatcher:
        """The dispatcher for `loop`; a new one if the scheduler lived on another loop that has gone."""
        home = self._home
        if loop is home.loop:
            home.thread = get_ident()
            return home
        if home.loop is not None:
            if home.loop.is_running() and not home.admission.idle:
                raise SchedulerMisuse(
                    f"scheduler {self.name!r} is in use on another running event loop: make one scheduler per loop, "
                    "or submit from that loop's thread"
                )
            abandon(home, wake=not home.loop.is_closed())
        self._home = self._new_home(loop)
        return self._home

    def _new_home(self, loop: asyncio.AbstractEventLoop | None) -> Dispatcher:
        paused = self._home.admission.paused if hasattr(self, "_home") else frozenset()
        self._reset_policy()
        home = Dispatcher(loop, self._settings, self._policy, self._tallies, self._listeners)
        home.admission.set_paused(paused, home.clock())
        return home

    def _claim(self, policy: LimitPolicy) -> None:
        """The policy is this scheduler's from here on.

        Raises:
            ConfigError: it remembers what it hears, and another scheduler in use has it.
        """
        parts = _parts(policy)
        for part in parts:
            other = _serves.get(id(part))
            if other is not None and other is not self and other._has(part) and remembers(part):
                which = "policy" if part is policy else f"{part!r} in the policy"
                raise ConfigError(
                    f"{which} serves scheduler {other.name!r}, and would learn from the calls of both: make one for "
                    "each, or close that one first"
                )
        for part in parts:
            _serves[id(part)] = self

    def _has(self, policy: LimitPolicy) -> bool:
        loop = self._home.loop if hasattr(self, "_home") else None
        its = any(part is policy for part in _parts(self._policy))
        return its and self._shutdown is None and (loop is None or not loop.is_closed())

    def _reset_policy(self) -> None:
        """Let the policy forget single calls: of those that it knew it would not hear any more."""
        try:
            reset(self._policy)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self._listeners.policy_fault(error)

    def after_fork(self) -> None:
        """Start afresh in a forked child; called by the interpreter."""
        abandon(self._home, wake=False)
        self._home = self._new_home(None)

    def _own_thread(self, what: str) -> None:
        loop = self._home.loop
        if loop is not None and loop.is_closed():
            abandon(self._home, wake=False)
            self._home = self._new_home(None)
        elif loop is not None and loop.is_running() and asyncio._get_running_loop() is not loop:
            raise SchedulerMisuse(
                f"{what}() was called outside the thread of the scheduler's event loop: "
                f"write loop.call_soon_threadsafe(lambda: scheduler.{what}(...))"
            )
        if self._home.governor.asking:
            raise self._called_by_policy(what)

    def _called_by_policy(self, what: str) -> SchedulerMisuse:
        rest = "asyncio.create_task(scheduler.submit(...))" if what == "submit" else f"scheduler.{what}(...)"
        return SchedulerMisuse(
            f"{what}() was called by the policy, in the middle of a change: let it decide, "
            f"and write loop.call_soon(lambda: {rest}) for the rest"
        )

    def _outside_a_slot(self, what: str) -> None:
        inside = (node for node in lineage(around()) if isinstance(node, Call))
        if call := next((call for call in inside if call.home is self._home and call.state != GONE), None):
            raise SchedulerMisuse(
                f"{what}() from inside a slot of the same scheduler ({call.title}) would wait for itself: "
                "call it from a task that was started outside"
            )

    def __reduce__(self) -> NoReturn:
        raise SchedulerMisuse(
            f"scheduler {self.name!r} belongs to this process and cannot be pickled or copied: "
            "make one in each process, for example at import time"
        )


def _parts(policy: LimitPolicy) -> list[LimitPolicy]:
    """The policy and those that it is made of, as far as it says."""
    try:
        return list(with_its_parts(policy))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return [policy]
