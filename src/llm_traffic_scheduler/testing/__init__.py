"""For tests of code that uses the scheduler: hours in milliseconds, full slots, and a scheduler that never says wait.

Floor: beside the front door. For the tests of this project, of its users, and for the simulation.
"""

from .virtual_time import VirtualTimeDeadlock, VirtualTimeLoop, run_virtual

__all__ = ["VirtualTimeDeadlock", "VirtualTimeLoop", "run_virtual"]
