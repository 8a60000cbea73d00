"""For tests of code that uses the scheduler: hours in milliseconds, full slots, and a scheduler without limits.

Floor: beside the front door. For the tests of this project, of its users, and for the simulation.
"""

from .doubles import HeldSlots, RecordedCall, Unlimited, hold, unlimited
from .virtual_time import VirtualTimeDeadlock, VirtualTimeLoop, run_virtual

__all__ = [
    "HeldSlots",
    "RecordedCall",
    "Unlimited",
    "VirtualTimeDeadlock",
    "VirtualTimeLoop",
    "hold",
    "run_virtual",
    "unlimited",
]
