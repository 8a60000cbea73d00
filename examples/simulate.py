"""What the scheduler does, on made-up traffic in real time or on recorded traffic in virtual time.

    python examples/simulate.py                                   about 20 seconds, all arms side by side
    python examples/simulate.py --trace traffic.csv --speed 0.5   hours of traffic in half a minute
    python examples/simulate.py --help                            other policies, backends, traffic and faults

The same as `python -m llm_traffic_scheduler.simulation`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from llm_traffic_scheduler.simulation import cli


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.main(arguments, prog=Path(__file__).name)


if __name__ == "__main__":
    sys.exit(main())
