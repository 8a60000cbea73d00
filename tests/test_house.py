"""The house stands as drawn: imports point down, rooms are small, the front door is reviewed, the README runs."""

from __future__ import annotations

import ast
import inspect
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pytest

import llm_traffic_scheduler
import llm_traffic_scheduler.testing
from llm_traffic_scheduler.testing import run_virtual

ROOT = Path(__file__).parents[1]
PACKAGE = "llm_traffic_scheduler"
HOUSE = ROOT / "src" / PACKAGE
README = ROOT / "README.md"

TOP_LEVEL = {"LICENSE", "README.md", "examples", "pyproject.toml", "src", "tests"}
CLOCKS_AND_THREADS = {"asyncio", "logging", "random", "threading", "time"}
LONGEST_FILE = 450
LONGEST_BODY = 30
LAST_LINE_FOR_THE_FIRST_EXAMPLE = 20

GROUND, POLICIES, SHELL, DOOR, BESIDE_THE_DOOR, ATTIC = range(1, 7)
FLOORS = {
    "core": GROUND,
    "errors": GROUND,
    "policies": POLICIES,
    "": DOOR,
    "testing": BESIDE_THE_DOOR,
    "simulation": ATTIC,
    "adapters": ATTIC,
    "jobs": ATTIC,
}

# Reviewed: a name that is added here is kept for good.
FRONT_DOOR = [
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
TESTING_DOOR = [
    "HeldSlots",
    "RecordedCall",
    "Unlimited",
    "VirtualTimeDeadlock",
    "VirtualTimeLoop",
    "hold",
    "run_virtual",
    "unlimited",
]


class Import(NamedTuple):
    """One imported module, as the absolute name it stands for."""

    place: str
    module: str
    at_load: bool  # not inside a function, not for the type checker only


def rooms() -> list[Path]:
    return sorted(HOUSE.rglob("*.py"))


def stories() -> list[Path]:
    return sorted((ROOT / "examples").rglob("*.py"))


def module_of(room: Path) -> str:
    """`src/llm_traffic_scheduler/core/admission.py` -> `llm_traffic_scheduler.core.admission`."""
    parts = room.relative_to(HOUSE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor_of(module: str) -> int:
    room = module.removeprefix(PACKAGE).removeprefix(".").partition(".")[0]
    return FLOORS.get(room, SHELL)


def is_room(module: str) -> bool:
    path = HOUSE.parent / Path(*module.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


@cache
def imports_of(room: Path) -> list[Import]:
    found = []
    for node, at_load in statements(ast.parse(room.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = absolute(node, room)
            names = [f"{source}.{alias.name}" for alias in node.names]
            # `traffic` of the front door is a function, and a room of the same name is behind it.
            behind = {name for name in names if is_room(name)} - {f"{PACKAGE}.{name}" for name in FRONT_DOOR}
            modules = [name if name in behind else source for name in names]
        else:
            continue
        found += [Import(f"{room.relative_to(ROOT)}:{node.lineno}", module, at_load) for module in modules]
    return found


def statements(tree: ast.AST, at_load: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """All statements, and whether they run when the module is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue
        if isinstance(node, ast.stmt):
            yield node, at_load
        later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        types_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        yield from statements(node, at_load and not later and not types_only)


def absolute(node: ast.ImportFrom, room: Path) -> str:
    if node.level == 0:
        assert node.module is not None
        return node.module
    package = room.parent.relative_to(HOUSE.parent).parts
    base = package[: len(package) - node.level + 1]
    return ".".join((*base, node.module) if node.module else base)


def is_ours(module: str) -> bool:
    return module.partition(".")[0] == PACKAGE


def bodies() -> Iterator[tuple[str, int]]:
    for room in rooms():
        for node in ast.walk(ast.parse(room.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                statements = node.body[1:] if ast.get_docstring(node) is not None else node.body
                # From the end of the docstring on, so that a comment above the first statement counts.
                start = (node.body[0].end_lineno or 0) + 1 if statements is not node.body else node.body[0].lineno
                length = (node.end_lineno or 0) - start + 1 if statements else 0
                yield f"{room.relative_to(ROOT)}:{node.lineno} {node.name}", length


def readme_lines() -> list[str]:
    assert README.is_file(), "README.md is missing"
    return README.read_text(encoding="utf-8").splitlines()


def python_blocks() -> list[tuple[int, str]]:
    """The README's Python blocks: the line each begins on, and its text."""
    if not README.is_file():
        return []
    lines = readme_lines()
    starts = [number for number, line in enumerate(lines, start=1) if line.strip() == "```python"]
    return [(start + 1, "\n".join(takewhile(lambda line: line.strip() != "```", lines[start:]))) for start in starts]


def all_or_none(offences: list[str], rule: str) -> None:
    assert not offences, f"{rule}:\n" + "\n".join(offences)


def test_imports_point_down() -> None:
    offences = [
        f"{found.place} imports {found.module}"
        for room in rooms()
        for found in imports_of(room)
        if is_ours(found.module) and floor_of(found.module) > floor_of(module_of(room))
    ]

    all_or_none(offences, "imports that point up (core < policies < the shell < the front door < simulation)")


def test_below_the_third_floor_there_is_no_clock_no_loop_and_no_thread() -> None:
    offences = [
        f"{found.place} imports {found.module}"
        for room in rooms()
        if floor_of(module_of(room)) < SHELL
        for found in imports_of(room)
        if found.module.partition(".")[0] in CLOCKS_AND_THREADS
    ]

    all_or_none(offences, "core, policies and errors are pure: time comes in as `now`")


def test_nothing_above_the_front_door_reaches_past_it() -> None:
    doors = {PACKAGE, f"{PACKAGE}.testing"}
    offences = []
    for room in rooms():
        own_floor = module_of(room).split(".")[:2]
        if floor_of(module_of(room)) > DOOR:
            offences += [
                f"{found.place} imports {found.module}"
                for found in imports_of(room)
                if is_ours(found.module) and found.module not in doors and found.module.split(".")[:2] != own_floor
            ]

    all_or_none(offences, f"simulation, adapters, jobs and testing import from {PACKAGE} and {PACKAGE}.testing only")


def test_examples_stay_above_the_front_door() -> None:
    offences = [
        f"{found.place} imports {found.module}"
        for story in stories()
        for found in imports_of(story)
        if is_ours(found.module) and floor_of(found.module) < DOOR
    ]

    all_or_none(offences, f"examples import from {PACKAGE}, its testing and its extras only")


def test_the_package_needs_nothing_but_the_standard_library() -> None:
    offences = [
        f"{found.place} imports {found.module}"
        for room in rooms()
        if floor_of(module_of(room)) < ATTIC
        for found in imports_of(room)
        if found.at_load and not is_ours(found.module)
        if found.module.partition(".")[0] not in sys.stdlib_module_names
    ]

    all_or_none(offences, "the package itself has no dependency")


ADAPTERS = sorted(module_of(room) for room in rooms() if module_of(room).startswith(f"{PACKAGE}.adapters"))


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_is_in_the_attic_and_loads_no_library_that_it_may_not_find(adapter: str) -> None:
    assert floor_of(adapter) == ATTIC
    program = f"import sys, {adapter}; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    # They take what they are handed, a client or an application; none of them makes one.
    libraries = {"anthropic", "httpx", "httpx2", "openai", "starlette", "uvicorn"}
    all_or_none([module for module in loaded if module.partition(".")[0] in libraries], f"loaded by `import {adapter}`")


@pytest.mark.parametrize("door", [PACKAGE, f"{PACKAGE}.testing", f"{PACKAGE}.simulation"])
def test_a_door_loads_no_extra_but_its_own(door: str) -> None:
    program = f"import sys, {door}; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    extras = {f"{PACKAGE}.{room}" for room, floor in FLOORS.items() if floor > DOOR}
    # The simulation lives in virtual time.
    extras -= {door, f"{PACKAGE}.testing"} if door.endswith("simulation") else {door}
    offences = [
        module
        for module in loaded
        if module.partition(".")[0] in {"httpx", "httpx2", "matplotlib", "numpy", "tqdm"}
        or ".".join(module.split(".")[:2]) in extras
    ]

    all_or_none(offences, f"loaded by `import {door}`")


def test_the_front_door_is_the_reviewed_list() -> None:
    assert sorted(FRONT_DOOR) == FRONT_DOOR
    assert llm_traffic_scheduler.__all__ == FRONT_DOOR
    assert all(hasattr(llm_traffic_scheduler, name) for name in FRONT_DOOR)


def test_the_door_of_testing_is_the_reviewed_list() -> None:
    assert llm_traffic_scheduler.testing.__all__ == TESTING_DOOR


def test_every_public_name_says_what_it_is_for() -> None:
    public = [getattr(llm_traffic_scheduler, name) for name in FRONT_DOOR]
    public += [getattr(llm_traffic_scheduler.testing, name) for name in TESTING_DOOR]
    offences = []
    for thing in public:
        if inspect.isclass(thing) or inspect.isfunction(thing):
            # A dataclass without a docstring gets its signature for one.
            if not thing.__doc__ or thing.__doc__.startswith(f"{thing.__name__}("):
                offences.append(thing.__name__)
            methods = inspect.getmembers(thing, inspect.isfunction)
            offences += [
                method.__qualname__
                for name, method in methods
                if not name.startswith("_") and method.__module__.startswith(PACKAGE) and not inspect.getdoc(method)
            ]

    all_or_none(offences, "public, without a docstring")


def test_files_are_short() -> None:
    lengths = {room: len(room.read_text(encoding="utf-8").splitlines()) for room in rooms()}
    offences = [f"{room.relative_to(ROOT)}: {lines}" for room, lines in lengths.items() if lines > LONGEST_FILE]

    all_or_none(offences, f"files over {LONGEST_FILE} lines: each is two rooms")


def test_function_bodies_are_short() -> None:
    offences = [f"{place}: {lines}" for place, lines in bodies() if lines > LONGEST_BODY]

    all_or_none(offences, f"function bodies over {LONGEST_BODY} lines")


def test_nothing_is_left_for_later() -> None:
    later = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    offences = [
        f"{file.relative_to(ROOT)}:{number} {line.strip()}"
        for file in [*rooms(), *stories()]
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if later.search(line)
    ]

    all_or_none(offences, "left for later")


def test_time_is_in_seconds() -> None:
    offences = [
        f"{file.relative_to(ROOT)}:{token.start[0]} {token.string}"
        for file in [*rooms(), *stories()]
        for token in tokenize.generate_tokens(io.StringIO(file.read_text(encoding="utf-8")).readline)
        if token.type == tokenize.NAME and token.string.lower().endswith("_ms")
    ]

    all_or_none(offences, "names that count milliseconds")


def test_no_test_sleeps_on_the_real_clock() -> None:
    offences = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep"
    ]

    all_or_none(offences, "time.sleep in tests")


def test_the_top_level_is_as_the_architecture_says() -> None:
    # The option lets git answer about a clone that belongs to another user.
    git = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "ls-files"]
    listed = subprocess.run(git, capture_output=True, text=True, check=False).stdout.splitlines()
    # Without git (an unpacked sdist), the directory itself.
    names = {file.partition("/")[0] for file in listed} or {entry.name for entry in ROOT.iterdir()}

    assert {name for name in names if not name.startswith(".")} == TOP_LEVEL
    assert (HOUSE / "py.typed").is_file()


def test_the_readme_shows_code_on_its_first_screen() -> None:
    assert "```python" in readme_lines()[:LAST_LINE_FOR_THE_FIRST_EXAMPLE]


@pytest.mark.parametrize("line,source", python_blocks(), ids=lambda value: str(value) if type(value) is int else "")
def test_a_readme_block_runs(line: int, source: str) -> None:
    # The blank lines make a traceback point into the README.
    code = compile("\n" * (line - 1) + source, str(README), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    awaitable = eval(code, {"__name__": "__main__"})

    if awaitable is not None:
        run_virtual(awaitable)


def test_links_in_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", "\n".join(readme_lines()))
    local = [link.partition("#")[0] for link in links if not re.match(r"[a-z]+:", link)]

    all_or_none([link for link in local if link and not (ROOT / link).exists()], "links in README.md to no file")
