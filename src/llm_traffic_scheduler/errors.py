"""What can go wrong, in two families: refusals of a call, and misuse of the library.

Floor: ground. Every `SchedulerError` is about one call or one setting and can be handled;
`SchedulerMisuse` is a bug in the calling program and says what to write instead.
"""

from __future__ import annotations

__all__ = [
    "CallAborted",
    "ConfigError",
    "QueueFull",
    "QueueTimeout",
    "Rejected",
    "RunTimeout",
    "SchedulerClosed",
    "SchedulerError",
    "SchedulerMisuse",
    "StreamClosed",
]


class SchedulerError(Exception):
    """Base of everything the scheduler raises about a call or a setting.

    Fields survive pickling and copying.
    """

    def __reduce__(self) -> tuple[object, ...]:
        # Exception pickles as cls(*args), which loses keyword-only fields.
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(cls: type[SchedulerError], args: tuple[object, ...], fields: dict[str, object]) -> SchedulerError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class Rejected(SchedulerError):
    """The call was refused before it ran; its function was never called.

    Attributes:
        kind: "interactive" or "batch".
        retry_after: seconds in which the calls that wait, and one more, will have ended at the rate of the
            last window; None if none has ended in it.
    """

    def __init__(self, message: str, *, kind: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after = retry_after


class QueueFull(Rejected):
    """As many calls of this kind wait as `max_queued_interactive` or `max_queued_batch` allows.

    Attributes:
        queued: calls of this kind that waited at that moment and count against the bound: not those inside of others,
            nor those of `map` and `as_completed`, nor those that had given their slot up and waited to come back.
        limit: the bound in force.
    """

    def __init__(self, message: str, *, kind: str, queued: int, limit: int, retry_after: float | None = None) -> None:
        super().__init__(message, kind=kind, retry_after=retry_after)
        self.queued = queued
        self.limit = limit


class QueueTimeout(Rejected, TimeoutError):
    """No slot came free within `queue_timeout`. Counted as rejected.

    Attributes:
        waited: seconds the call spent in the queue.
    """

    def __init__(self, message: str, *, kind: str, waited: float, retry_after: float | None = None) -> None:
        super().__init__(message, kind=kind, retry_after=retry_after)
        self.waited = waited


class SchedulerClosed(Rejected):
    """The scheduler is closing or closed; the call never ran."""


class RunTimeout(SchedulerError, TimeoutError):
    """`run_timeout` ended the call. A TimeoutError that the call raised itself is passed on as it is."""


class CallAborted(SchedulerError):
    """`close()` cancelled the call while it ran."""


class StreamClosed(SchedulerError):
    """The stream was closed before its end: what has been read of it is not the whole.

    Attributes:
        idle: seconds without a reader after which `idle_timeout` closed it; None: it was closed for another reason.
    """

    def __init__(self, message: str, *, idle: float | None = None) -> None:
        super().__init__(message)
        self.idle = idle


class ConfigError(SchedulerError, ValueError):
    """A setting or an argument has an impossible value; nothing was changed or queued."""


class SchedulerMisuse(RuntimeError):
    """The program uses the scheduler in a way that cannot work; the message says what to write."""
