"""`python -m llm_traffic_scheduler.simulation`: what would this policy have done to my traffic?

Floor: fourth.
"""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main(prog="python -m llm_traffic_scheduler.simulation"))
