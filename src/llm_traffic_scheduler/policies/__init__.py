"""Second floor: laws that say how many batch calls may run."""
