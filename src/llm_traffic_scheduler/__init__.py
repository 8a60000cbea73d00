"""Puts people before batch work in front of an LLM, inside your own asyncio process.

scheduler = TrafficScheduler(max_concurrency=8, policy=AdaptivePolicy(p95_target=2.0))
answer = await scheduler.submit("interactive", ask, question)
summary = await scheduler.submit("batch", summarise, document, priority=5)
async with scheduler.slot("batch") as slot:
    ...
print(scheduler.explain())
await scheduler.close()
"""

from .calibration import calibrate
from .calibration_result import Calibration
from .call import TrafficKind
from .circles import PossibleDeadlock
from .core.load_curve import CalibrationPoint
from .core.metrics import TrafficSnapshot
from .errors import (
    CallAborted,
    ConfigError,
    QueueFull,
    QueueTimeout,
    Rejected,
    RunTimeout,
    SchedulerClosed,
    SchedulerError,
    SchedulerMisuse,
    StreamClosed,
)
from .events import CallFinished, CallQueued, CallRejected, CallStarted, Event, LimitChanged
from .gauge import Gauge
from .listeners import Listener
from .outcome import Outcome
from .policies.adaptive import AdaptivePolicy
from .policies.base import Arrived, Decision, Ended, FirstToken, LimitPolicy, ObservingPolicy, Signals
from .policies.external import ExternalPolicy, GaugeReading
from .policies.fixed import FixedPolicy
from .policies.history import LimitRecord
from .policies.pressure import PressurePolicy
from .policies.shadow import Shadow, ShadowRecord, ShadowReport
from .scheduler import TrafficScheduler
from .slot import Slot, checkpoint, current_slot, released
from .snapshot import CallInfo, CloseReport, KindTotals, Reason, SchedulerSnapshot
from .stream import Stream
from .traffic import kind_in_force, traffic
from .work import Kind

__all__ = [
    "AdaptivePolicy",
    "Arrived",
    "Calibration",
    "CalibrationPoint",
    "CallAborted",
    "CallFinished",
    "CallInfo",
    "CallQueued",
    "CallRejected",
    "CallStarted",
    "CloseReport",
    "ConfigError",
    "Decision",
    "Ended",
    "Event",
    "ExternalPolicy",
    "FirstToken",
    "FixedPolicy",
    "Gauge",
    "GaugeReading",
    "Kind",
    "KindTotals",
    "LimitChanged",
    "LimitPolicy",
    "LimitRecord",
    "Listener",
    "ObservingPolicy",
    "Outcome",
    "PossibleDeadlock",
    "PressurePolicy",
    "QueueFull",
    "QueueTimeout",
    "Reason",
    "Rejected",
    "RunTimeout",
    "SchedulerClosed",
    "SchedulerError",
    "SchedulerMisuse",
    "SchedulerSnapshot",
    "Shadow",
    "ShadowRecord",
    "ShadowReport",
    "Signals",
    "Slot",
    "Stream",
    "StreamClosed",
    "TrafficKind",
    "TrafficScheduler",
    "TrafficSnapshot",
    "calibrate",
    "checkpoint",
    "current_slot",
    "kind_in_force",
    "released",
    "traffic",
]
