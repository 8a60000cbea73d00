"""Control laws to compare with, on the same seam as those that the scheduler ships.

Floor: fourth. Pure. None of them is meant for production: `AdaptivePolicy` and `PressurePolicy` are.

    TrafficScheduler(max_concurrency=128, batch_max_concurrency=64, policy=FixedTotal(48))
"""

from .aimd import AIMD
from .fixed_total import FixedTotal
from .scavenger import Scavenger

__all__ = ["AIMD", "FixedTotal", "Scavenger"]
