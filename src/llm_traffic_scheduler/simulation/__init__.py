"""What this scheduler does to traffic, shown in simulation: beside other arms, on the same calls.

    question = Question(
        interactive=read_trace("tuesday.csv"),
        span=3600.0,
        batch=builtin_lengths(),
        policy=lambda p95_alone: AdaptivePolicy(p95_target=12.0),
        target=lambda p95_alone: 12.0,
    )
    print(answer_text(what_if(question), ["tuesday.csv"]))

From a shell: `python -m llm_traffic_scheduler.simulation --trace tuesday.csv --policy adaptive --p95-target 12`.
Traffic is recorded (`traces`) or made up (`shapes`); backends share one protocol (`backend`), and so do the faults
that wrap them; laws to compare with are in `simulation.laws`.
Pictures are drawn by `llm_traffic_scheduler.simulation.plot`, which needs matplotlib:
`pip install 'llm-traffic-scheduler[simulation]'`. The rest needs nothing.
"""

from .backend import Backend, Broken, OnFirstToken, Overloaded, Throttled
from .batching_server import A100, H100, TWO_CORE_CPU, BatchingServer, Engine
from .faults import FailingFast, Hung, Outage, Outlier, Throttling, TimingOut
from .hosted_api import HostedAPI
from .layout import plain
from .replay import Replay, Setup, builtin_lengths, paced, replay
from .reporting_backend import Reporting
from .results import RunResult
from .run_json import replay_json, scenarios_json
from .run_texts import replay_text, scenario_text, verdict_text
from .runner import Workload, run_arm
from .scenarios import SCENARIOS, Scenario, ScenarioRun, run_scenario
from .shapes import Agents, Lengths, burst, chat_lengths, diurnal, gamma_gaps, sparse, square, steady
from .simple_server import SimpleServer
from .slot_server import SlotServer, TokenSlots
from .traces import CallLength, RecordedCall, TraceError, read_lengths, read_trace
from .verdict import Criterion, judge
from .what_if import Answer, Question, what_if
from .what_if_text import answer_json, answer_text

__all__ = [
    "A100",
    "H100",
    "SCENARIOS",
    "TWO_CORE_CPU",
    "Agents",
    "Answer",
    "Backend",
    "BatchingServer",
    "Broken",
    "CallLength",
    "Criterion",
    "Engine",
    "FailingFast",
    "HostedAPI",
    "Hung",
    "Lengths",
    "OnFirstToken",
    "Outage",
    "Outlier",
    "Overloaded",
    "Question",
    "RecordedCall",
    "Replay",
    "Reporting",
    "RunResult",
    "Scenario",
    "ScenarioRun",
    "Setup",
    "SimpleServer",
    "SlotServer",
    "Throttled",
    "Throttling",
    "TimingOut",
    "TokenSlots",
    "TraceError",
    "Workload",
    "answer_json",
    "answer_text",
    "builtin_lengths",
    "burst",
    "chat_lengths",
    "diurnal",
    "gamma_gaps",
    "judge",
    "paced",
    "plain",
    "read_lengths",
    "read_trace",
    "replay",
    "replay_json",
    "replay_text",
    "run_arm",
    "run_scenario",
    "scenario_text",
    "scenarios_json",
    "sparse",
    "square",
    "steady",
    "verdict_text",
    "what_if",
]
