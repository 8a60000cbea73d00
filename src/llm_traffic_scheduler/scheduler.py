"""The scheduler that people import: checks what it is given, and runs calls in their callers' own tasks.

Floor: third, the lowest that imports asyncio. What is decided, and why, is on the floors below.
"""

from __future__ import annotations

import math
from asyncio import current_task, get_running_loop
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import CoroutineType, TracebackType
from typing import Final, Self, TypeVar, TypeVarTuple, Unpack

from . import bulk, call_options, listening, nested, preemption, shutdown, steering, stream, threads, wrapping
from .call import Call
from .call_options import CallOptions, parse, refuse_preemptible, refuse_unknown
from .circles import watch_for_circles
from .core.admission import RUNNING
from .dispatcher import LOOKUP_IS_DEAR
from .errors import ConfigError, SchedulerClosed, SchedulerMisuse
from .loop_bound import LoopBound
from .observation import tell_arrived
from .policies.base import LimitPolicy
from .policies.history import LimitRecord
from .refusals import refusal
from .settings import Settings
from .slot import Slot
from .slot_context import SlotContext
from .snapshot import CallInfo, SchedulerSnapshot
from .stream_sources import PLAIN, refuse_stream
from .surroundings import active, around, leave
from .traffic import is_interactive, living
from .views import call_infos, explanation, limit_history, take_snapshot
from .work import Kind, check_awaitable, not_a_function

__all__ = ["TrafficScheduler"]

_INFINITY: Final = math.inf
# Bound once: to look these up for each call costs a quarter of a Semaphore's time.
_inside, _enter, _leave = active.get, active.set, active.reset

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class TrafficScheduler(LoopBound):
    """Runs LLM calls of two kinds on one backend, so that nobody who waits stands behind batch work.

    At most `max_concurrency` calls run at a time. A free slot goes to interactive work first. Batch
    work runs within a limit that falls as interactive traffic comes under pressure, never below
    `batch_min_concurrency`; it can never hold the last slot.

    Constructible at import time, outside any loop; binds to the running loop at first use.
    Threads: `snapshot`, `explain`, `calls`, `submit_from_thread` and `slot_from_thread` from any, everything else
        from the loop's own.

    Args:
        max_concurrency: calls that run at a time, both kinds together; at least 2.
        batch_max_concurrency: batch calls at a time, below the cap; left out, three quarters of it.
        batch_min_concurrency: the batch limit never falls below this; at least 1.
        interactive_rps_threshold: interactive arrivals per second that count as full pressure.
        interactive_p95_threshold: interactive P95, end to end in seconds, that counts as full pressure.
        window: seconds of traffic that the pressure looks at.
        smoothing: time constant in seconds of an exponential average of the pressure.
        policy: another law than the thresholds', `AdaptivePolicy(p95_target=...)` first of all, or one of your own.
        interactive_queue_timeout, batch_queue_timeout: seconds to wait for a slot, for calls that give none.
        interactive_run_timeout, batch_run_timeout: seconds to run, for calls that give none.
        max_queued_interactive, max_queued_batch: calls that may wait; more get QueueFull.
        max_running_per_tenant: calls of one tenant that run at a time, both kinds together; None: no bound. All calls
            without a tenant are one.
        batch_starvation_timeout: seconds after which waiting batch work goes first once; None: never.
        close_timeout: seconds that close() waits for running calls; None: without bound.
        name: for logs, messages and metrics.

    Raises:
        ConfigError: an argument is impossible, or `policy` serves another scheduler and remembers what it hears; the
            message names it, the rule and the value.
    """

    def __init__(
        self,
        *,
        max_concurrency: int,
        batch_max_concurrency: int | None = None,
        batch_min_concurrency: int = 1,
        interactive_rps_threshold: float | None = None,
        interactive_p95_threshold: float | None = None,
        window: float = 10.0,
        smoothing: float | None = None,
        policy: LimitPolicy | None = None,
        interactive_queue_timeout: float | None = None,
        batch_queue_timeout: float | None = None,
        interactive_run_timeout: float | None = None,
        batch_run_timeout: float | None = None,
        max_queued_interactive: int | None = None,
        max_queued_batch: int | None = None,
        max_running_per_tenant: int | None = None,
        batch_starvation_timeout: float | None = 30.0,
        close_timeout: float | None = 20.0,
        name: str = "default",
    ) -> None:
        if not isinstance(name, str):
            raise ConfigError(f"name must be a string, got {name!r}")
        settings = Settings(
            max_concurrency=max_concurrency,
            batch_max_concurrency=batch_max_concurrency,
            batch_min_concurrency=batch_min_concurrency,
            interactive_rps_threshold=interactive_rps_threshold,
            interactive_p95_threshold=interactive_p95_threshold,
            window=window,
            smoothing=smoothing,
            policy=policy,
            interactive_queue_timeout=interactive_queue_timeout,
            batch_queue_timeout=batch_queue_timeout,
            interactive_run_timeout=interactive_run_timeout,
            batch_run_timeout=batch_run_timeout,
            max_queued_interactive=max_queued_interactive,
            max_queued_batch=max_queued_batch,
            max_running_per_tenant=max_running_per_tenant,
            batch_starvation_timeout=batch_starvation_timeout,
            close_timeout=close_timeout,
        )
        self._never_plain = settings.bounds_waits_or_runs
        super().__init__(name, settings)

    # Running work

    async def submit(
        self,
        kind: Kind | None,
        coro_fn: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        **options: Unpack[CallOptions],
    ) -> T:
        """Wait for a slot, run `coro_fn(*args)` in it, in the caller's own task, and return its result.

        Args:
            kind: "interactive" or "batch"; None: the one in force, see `traffic`.
            coro_fn: a function that returns an awaitable; called at most once unless `preemptible`, and never if the
                call is refused.
            priority: lower runs earlier within a kind; first come, first served among equals.
            queue_timeout: seconds to wait for a slot; 0 or less: now or not at all; infinity: no bound.
            run_timeout: seconds to run, above 0; then the function is cancelled. The slot stays taken until it has
                really ended, and what it returns after all is the result.
            label: a name for the operator, in `calls()`, events and messages.
            observe: False keeps the call out of the window of interactive traffic.
            tenant: whose call it is; left out, that of the call or `traffic` block around it. Tenants whose calls wait
                with equal priority take turns; calls without one are one tenant.
            preemptible: True: it is safe to run the function again. A batch call may then be cancelled, twice at most,
                when interactive calls wait for its slot; it waits in its old place, and its function is called again,
                with a `run_timeout` of its own. What it had done is lost: at most a twentieth of the slot-seconds
                that batch has had in the last minute.

        Raises:
            QueueFull, QueueTimeout, SchedulerClosed: refused; the function was not called.
            RunTimeout: `run_timeout` ended it.
            CallAborted: close() cancelled it.
            ConfigError, SchedulerMisuse, TypeError: the arguments are wrong; nothing was queued.
            SchedulerMisuse: what the function returned cannot be awaited, or its result is a stream still to be read,
                see `stream`; then it has been called.
            Whatever the function raises, unchanged.
        Cancellation: while it waits, the call leaves the queue; while it runs, the function gets the
            cancellation as if awaited directly, and the slot is given back when it has ended.
        """
        if not callable(coro_fn):
            raise not_a_function(coro_fn, kind)
        home = (call := self._admit(kind, options)).home
        if call.waiter is not None:
            try:
                if (verdict := await call.waiter) is not None:
                    raise refusal(home, call, verdict)
            except BaseException as error:
                home.quit(call, error)  # nothing to do for one that was refused
                raise
        if call.extras is not None and home.begin_with(call, call.extras):
            return await preemption.run(call, call.extras, coro_fn, args)
        call.task, token = current_task(home.loop), _enter(call)
        call.base = 0 if call.task is None else call.task.cancelling()
        try:
            awaitable = coro_fn(*args) if args else coro_fn()  # type: ignore[call-arg]
            if type(awaitable) is not CoroutineType:
                check_awaitable(awaitable, coro_fn)
            result = await awaitable
            if result is not None and type(result) not in PLAIN and hasattr(type(result), "__anext__"):
                await refuse_stream(result, coro_fn)
        except BaseException as error:
            leave(call, token)
            awaitable = None  # a failed task in it would hold this frame, which holds it
            if home.fail(call, error):
                raise call.overruled() from error
            raise
        _leave(token)
        home.complete(call)
        return result

    def slot(self, kind: Kind | None = None, /, **options: Unpack[CallOptions]) -> AbstractAsyncContextManager[Slot]:
        """A slot for a block: `async with scheduler.slot("batch") as slot: ...`.

        Options, errors and cancellation are those of `submit`.
        """
        refuse_unknown(options)
        refuse_preemptible(options, "slot")
        return SlotContext(partial(self._admit, kind, options))

    # Further doors, each in a room of its own.
    stream = stream.stream
    wrap = wrapping.wrap
    map = bulk.map
    as_completed = bulk.as_completed
    submit_from_thread = threads.submit_from_thread
    slot_from_thread = threads.slot_from_thread
    timeouts_in_force = call_options.timeouts_in_force
    add_listener = listening.add_listener
    remove_listener = listening.remove_listener
    configure = steering.configure
    pause = steering.pause
    resume = steering.resume
    drain = shutdown.drain
    close = shutdown.close

    def _admit(self, kind: Kind | None, options: CallOptions) -> Call:
        """Check the arguments, then let the call start or wait. A plain call pays for no check of what others bring."""
        interactive = True if kind == "interactive" else False if kind == "batch" else None
        if interactive is None or options or self._never_plain or _inside() is not None:
            return self._admit_particular(kind, options)
        home = self._home
        if not (home.is_here() if LOOKUP_IS_DEAR else get_running_loop() is home.loop):
            home = self._on(get_running_loop())
        if (governor := home.governor).asking:
            raise self._called_by_policy("submit")
        call = Call()
        call.home, call.interactive = home, interactive
        call.observed = interactive
        call.extras = call.waiter = call.parent = None
        call.priority, call.deadline = 0, _INFINITY
        call.submitted = now = home.clock()
        # From here on as `Dispatcher.admit`, one frame less.
        if interactive:
            if now >= governor.slice_end:
                home.enter_slice(now)
            governor.fresh = False
            governor.window.pending.arrivals += 1
            if governor.observe is not None:
                tell_arrived(call, now)
        if home.admission.offer_as(call, False) != RUNNING or home.attentive or home.admission.batch_queue.size:
            home.admitted(call)
        return call

    def _admit_particular(self, kind: Kind | None, options: CallOptions) -> Call:
        call, inside = Call(), around()
        call.interactive = is_interactive(kind, inside)
        waits = parse(call, options, self._settings, inside)
        call.home = home = self._on(get_running_loop())
        if home.governor.asking:
            raise self._called_by_policy("submit")
        call.parent = inside = living(inside)
        host = nested.host_of(inside, home)
        if self._shutdown is not None and (host is None or self._shutdown.over):
            message = f"scheduler {self.name!r} is closed: it takes no new calls; make a new one"
            raise SchedulerClosed(message, kind=call.kind)
        call.submitted = now = home.clock()
        call.waiter = None
        call.deadline = now + waits
        if host is None:
            home.admit(call)
        else:
            nested.admit_inside(home, call, host)
        if call.waiter is not None and inside is not None:
            watch_for_circles(call)
        return call

    # Watching

    def snapshot(self) -> SchedulerSnapshot:
        """The whole scheduler at this instant.

        Threads: any; changes nothing.
        """
        return take_snapshot(self.name, self._home, self._tallies, self._listeners, self._shutdown is not None)

    def explain(self) -> str:
        """A few lines for an operator: who runs, who waits, what the batch limit is and why, what would move it.

        Beside them what looks wrong, and what to do about it.
        Threads: any; changes nothing.
        """
        return explanation(self.name, self._home, self._tallies, self._listeners, self._shutdown is not None)

    def limit_history(self) -> tuple[LimitRecord, ...]:
        """The last changes of the batch limit or of its reason, oldest first: 256 at most.

        Within a tenth of the window no more than three are kept: the lowest, the highest and the latest limit.
        The policy is asked only when batch work wants to start, so what nobody asked for is not there. On a new event
        loop it begins anew.

        Threads: any; changes nothing.
        """
        return limit_history(self._home)

    def calls(self) -> tuple[CallInfo, ...]:
        """Every call that has a slot of its own, has given it up, or waits for one; in this order.

        Calls in a lent slot are not among them, the one whose slot it is stands for them, even if it has ended.

        Complexity: O(n log n) in the calls that wait. Threads: any; changes nothing.
        """
        return call_infos(self._home)

    async def __aenter__(self) -> Self:
        if self._shutdown is not None:
            raise SchedulerMisuse(f"scheduler {self.name!r} is closed and stays so: make a new one")
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def check(self) -> None:
        """Assert every invariant; for tests."""
        self._home.check()

    def __repr__(self) -> str:
        limits = self._home.admission.limits
        interactive_running, interactive_queued, batch_running, batch_queued = self._home.admission.counts
        return (
            f"<TrafficScheduler {self.name!r}: {interactive_running}+{batch_running} of {limits.max_concurrency} "
            f"running, {interactive_queued}+{batch_queued} queued>"
        )
