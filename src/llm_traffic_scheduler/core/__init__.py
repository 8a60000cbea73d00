"""Ground floor: pure decisions, driven by events and `now`."""
