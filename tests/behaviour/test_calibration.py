"""calibrate() finds the knee of backends whose knee is known, keeps its budget, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from llm_traffic_scheduler import Calibration, ConfigError, TrafficScheduler, calibrate
from llm_traffic_scheduler.simulation import A100, BatchingServer, SlotServer
from tests.support import armed_timers, now, other_tasks, settle

SLOTS, SERVICE = 8, 0.2
CAPACITY = SLOTS / SERVICE  # 40 calls per second


class Backend:
    """Counts what it is sent; `throttle_from` and `fail_from` are numbers of calls, the first is 0."""

    def __init__(self, *, fail_from: float = float("inf"), error: BaseException | None = None) -> None:
        self.server = SlotServer(SLOTS)
        self.sent: list[float] = []
        self.ended = 0
        self.fail_from = fail_from
        self.error = error or ValueError("no")

    async def ask(self) -> str:
        self.sent.append(now())
        try:
            if len(self.sent) > self.fail_from:
                raise self.error
            await self.server.serve(SERVICE)
            return "blue"
        finally:
            self.ended += 1


class TooManyError(Exception):
    status_code = 429
    retry_after: float | None = None


def measure(call: Callable[[], Awaitable[object]], **options: Any) -> Awaitable[Calibration]:
    return calibrate(call, **{"rates": [5, 10, 20, 30, 60, 90], "seconds_per_rate": 10.0, "max_calls": 3000, **options})


def said(result: Calibration) -> str:
    return "\n".join(result.reasons)


@pytest.mark.parametrize("seed", range(5))
async def test_the_knee_of_eight_slots_is_found(seed: int) -> None:
    result = await measure(Backend().ask, seed=seed)

    assert result.interactive_rps_threshold is not None
    assert CAPACITY / 2 <= result.interactive_rps_threshold <= CAPACITY
    assert result.interactive_p95_threshold == pytest.approx(2 * SERVICE)
    assert result.max_concurrency is not None
    assert SLOTS / 2 < result.max_concurrency <= 2 * SLOTS
    # The curve ends at the first rate beyond what eight slots can do.
    assert [point.rate for point in result.points] == [5, 10, 20, 30, 60]
    assert [point.calls for point in result.points] == [50, 100, 200, 300, 600]
    assert [point.rate_achieved for point in result.points] == [5, 10, 20, 30, 60]


@pytest.mark.parametrize("seed", range(5))
async def test_an_overload_is_never_taken_for_a_rate_that_held_however_calls_differ(seed: int) -> None:
    server, lengths = SlotServer(SLOTS), random.Random(seed)
    rates = [share * CAPACITY for share in (0.2, 0.5, 0.8, 1.3, 1.7)]

    result = await measure(
        lambda: server.serve(lengths.expovariate(1 / SERVICE)), rates=rates, seconds_per_rate=7.0, seed=seed
    )

    assert result.interactive_rps_threshold is None or result.interactive_rps_threshold <= CAPACITY


async def test_the_knee_of_an_engine_with_continuous_batching_is_found() -> None:
    server, lengths = BatchingServer(), random.Random(1)

    result = await measure(
        lambda: server.serve(lengths.randint(1000, 3000), 100), rates=[0.5, 1, 2, 4, 8, 16], seconds_per_rate=60.0
    )

    prefill = A100.linear_cost(2000) + A100.per_token_pair * 2000**2 / 2
    assert result.interactive_rps_threshold is not None
    assert 1 / prefill / 4 < result.interactive_rps_threshold < 1 / prefill
    assert result.points[-1].rate == 2 * result.interactive_rps_threshold


async def test_a_target_moves_the_knee() -> None:
    within = await measure(Backend().ask, target_p95=SERVICE * 1.01, rates=[5, 10, 20, 30, 36, 60])
    beyond = await measure(Backend().ask, target_p95=10.0, rates=[5, 10, 20, 30, 36, 60])

    assert within.interactive_rps_threshold in (10, 20)
    assert within.interactive_p95_threshold == SERVICE * 1.01
    assert beyond.interactive_rps_threshold is None
    assert "no bend seen up to 60 calls/s" in said(beyond)


async def test_the_result_makes_a_scheduler() -> None:
    result = await measure(Backend().ask)

    scheduler = TrafficScheduler(**result.arguments())

    assert scheduler.snapshot().max_concurrency == result.max_concurrency


async def test_littles_law_holds_in_what_is_measured() -> None:
    result = await measure(Backend().ask)

    for point in result.points[:-1]:
        assert point.mean is not None
        assert point.mean_unfinished == pytest.approx(point.rate_achieved * point.mean, rel=0.05)
    for point in result.points:
        assert point.mean_unfinished < point.max_unfinished


async def test_the_same_seed_sends_at_the_same_instants_and_another_at_others() -> None:
    backends = [Backend() for _ in range(3)]
    for backend, seed in zip(backends, (1, 1, 2), strict=True):
        start = now()
        await measure(backend.ask, rates=[5, 10], seconds_per_rate=4.0, seed=seed)
        backend.sent = [round(sent - start, 6) for sent in backend.sent]

    assert backends[0].sent == backends[1].sent != backends[2].sent


async def test_calls_go_out_whether_or_not_the_earlier_ones_have_ended() -> None:
    sent: list[float] = []

    async def hang() -> None:
        sent.append(now())
        await asyncio.sleep(0 if len(sent) == 1 else 50)

    result = await measure(hang, rates=[4], seconds_per_rate=10.0)

    assert len(sent) == 41
    assert sent[-1] - sent[1] < 10
    assert result.points[0].max_unfinished == 40
    # They come evenly in ten seconds and none ends in them; what is unfinished afterwards does not count.
    assert 15 < result.points[0].mean_unfinished < 25


async def test_latency_counts_from_when_the_call_was_due_although_the_loop_was_late() -> None:
    loop_held = False

    async def instant() -> None:
        nonlocal loop_held
        if not loop_held:
            loop_held = True
            return
        # What a blocked loop looks like from inside: the clock has moved on before anybody else could run.
        asyncio.get_running_loop()._clock.now += 0.5  # type: ignore[attr-defined]

    result = await measure(instant, rates=[10], seconds_per_rate=3.0)

    assert result.points[0].p50 is not None
    assert result.points[0].p50 > 1.0
    assert "this process is the bottleneck" in said(result)


async def test_a_generator_that_has_to_catch_up_lets_the_calls_run_meanwhile() -> None:
    sent = 0

    async def instant() -> None:
        nonlocal sent
        sent += 1
        if sent == 2:
            asyncio.get_running_loop()._clock.now += 10.0  # type: ignore[attr-defined]

    result = await measure(instant, rates=[100], seconds_per_rate=3.0)

    assert result.points[0].calls == 300
    assert result.points[0].max_unfinished <= 128


async def test_one_call_goes_out_first_and_alone_and_is_not_in_the_curve() -> None:
    backend = Backend()

    result = await measure(backend.ask, rates=[5, 10], seconds_per_rate=4.0)

    assert backend.sent[1] - backend.sent[0] >= SERVICE
    assert result.calls == len(backend.sent) == 61
    assert sum(point.calls for point in result.points) == 60


async def test_if_the_first_call_fails_nothing_else_is_sent() -> None:
    backend = Backend(fail_from=0)

    result = await measure(backend.ask)

    assert len(backend.sent) == result.calls == 1
    assert result.points == ()
    assert said(result) == "the call sent first, alone, failed, and nothing else was sent: ValueError: no"


async def test_a_budget_that_does_not_suffice_is_told_before_anything_is_sent() -> None:
    backend = Backend()

    with pytest.raises(ConfigError, match=r"max_calls must be at least 151 .* got 150.*nothing was sent"):
        await measure(backend.ask, rates=[5, 10], seconds_per_rate=10.0, max_calls=150)

    assert backend.sent == []
    assert (await measure(backend.ask, rates=[5, 10], seconds_per_rate=10.0, max_calls=151)).calls == 151


async def test_it_stops_sending_when_the_backend_throttles_and_waits_for_what_it_sent() -> None:
    error = TooManyError("slow down")
    error.retry_after = 3.0
    backend = Backend(fail_from=151 + 30, error=error)

    result = await measure(backend.ask)

    assert result.interactive_rps_threshold == 10
    assert "the backend throttled at 20 calls/s" in said(result)
    assert "retry after 3 s" in said(result)
    assert result.points[-1].stopped == "throttled"
    assert result.points[-1].throttled == 1
    assert len(backend.sent) == backend.ended == 151 + 31


async def test_a_rate_that_was_stopped_ends_when_it_was_and_not_with_its_next_call() -> None:
    backend = Backend(fail_from=1, error=TooManyError())
    start = now()

    result = await measure(backend.ask, rates=[0.01], seconds_per_rate=1000.0)

    assert now() == backend.sent[1]
    assert result.points[0].seconds == pytest.approx(now() - start - SERVICE)


async def test_if_the_first_call_is_throttled_nothing_else_is_sent() -> None:
    error = TooManyError("slow down")
    error.retry_after = 3.0
    backend = Backend(fail_from=0, error=error)

    result = await measure(backend.ask)

    assert len(backend.sent) == result.calls == 1
    assert said(result).startswith("the call sent first, alone, was throttled, and nothing else was sent:")
    assert said(result).endswith("slow down, retry after 3 s")


@pytest.mark.parametrize("fail_from", [1, 10])
async def test_throttled_at_the_first_rate_there_is_no_answer(fail_from: int) -> None:
    backend = Backend(fail_from=fail_from, error=TooManyError())

    result = await measure(backend.ask)

    assert not result.complete
    assert (result.interactive_p95_threshold, result.max_concurrency) == (None, None)
    assert "throttled" in said(result)
    assert len(backend.sent) <= fail_from + 3


@pytest.mark.parametrize("named", [10**400, float("nan"), float("inf"), -1, "5"])
async def test_a_retry_after_that_is_no_number_of_seconds_is_passed_over(named: Any) -> None:
    error = TooManyError()
    error.retry_after = named

    result = await measure(Backend(fail_from=60, error=error).ask)

    assert result.points[-1].stopped == "throttled"
    assert result.points[-1].retry_after is None


@pytest.mark.parametrize("answer, throttled", [(True, 1), (0.0, 1), (2, 1), (10**400, 1), (False, 150), (None, 150)])
async def test_is_throttled_decides_what_throttling_is(answer: float | None, throttled: int) -> None:
    backend = Backend(fail_from=51)

    result = await measure(backend.ask, rates=[5, 15], is_throttled=lambda error: answer)

    assert result.points[-1].failures == throttled
    assert ("the backend throttled" in said(result)) == (throttled == 1)
    assert ("retry after 2 s" in said(result)) == (answer == 2)


async def test_failures_are_counted_and_not_raised() -> None:
    result = await measure(Backend(fail_from=51, error=asyncio.CancelledError()).ask, rates=[5, 10])

    assert result.points[-1].failures == result.points[-1].calls == 100
    assert result.points[-1].last_error == "CancelledError of its own"
    assert result.interactive_rps_threshold == 5


async def test_a_call_that_hangs_is_cancelled_at_call_timeout_and_counts_as_failed() -> None:
    backend = Backend()
    cancelled = 0

    async def ask() -> None:
        nonlocal cancelled
        await backend.ask()
        if len(backend.sent) > 51:
            try:
                await asyncio.sleep(float("inf"))
            except asyncio.CancelledError:
                cancelled += 1
                raise

    result = await measure(ask, rates=[5, 10], call_timeout=7.0)

    assert result.points[-1].failures == cancelled == 100
    assert result.points[-1].last_error == "no answer within call_timeout (7 s)"
    assert now() < 10 + 10 + 7 + 1


async def test_too_many_unfinished_calls_end_a_rate() -> None:
    result = await measure(Backend().ask, max_unfinished=16, rates=[5, 200])

    assert result.points[-1].stopped == "unfinished"
    assert result.points[-1].max_unfinished == 16
    assert result.points[-1].calls < 100


@pytest.mark.parametrize("after", [0.1, 0.3, 12.0, 45.0, 52.0])
async def test_cancelling_it_cancels_and_awaits_every_call(after: float) -> None:
    running = 0

    async def ask() -> None:
        nonlocal running
        running += 1
        try:
            await backend.ask()
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)  # cleaning up takes its time
            raise
        finally:
            running -= 1

    backend = Backend()
    task = asyncio.ensure_future(measure(ask))
    await asyncio.sleep(after)

    cancelled_at = now()
    task.cancel()
    await asyncio.sleep(0.1)
    task.cancel()  # impatience does not leave calls behind either
    with pytest.raises(asyncio.CancelledError):
        await task

    assert running == 0
    assert now() - cancelled_at == pytest.approx(0.5)
    assert other_tasks() == set()
    sent = len(backend.sent)
    await asyncio.sleep(20)
    assert len(backend.sent) == sent


async def test_it_leaves_no_task_and_no_timer() -> None:
    await measure(Backend().ask, rates=[5, 10])
    await settle()

    assert other_tasks() == set()
    assert armed_timers() == []


class Fatal(BaseException):
    pass


@pytest.mark.parametrize("fail_from", [0, 30])
async def test_what_is_no_exception_passes_through_and_nothing_is_left(fail_from: int) -> None:
    backend = Backend(fail_from=fail_from, error=Fatal("stop"))

    with pytest.raises(Fatal, match="stop"):
        await measure(backend.ask)

    assert other_tasks() == set()
    assert len(backend.sent) == backend.ended == fail_from + 1
    assert now() == backend.sent[-1]  # the other calls were not waited for


def broken(*_: object) -> bool:
    raise ZeroDivisionError("mine")


@pytest.mark.parametrize("option", ["is_throttled", "progress"])
async def test_a_fault_of_the_users_own_functions_comes_out_and_nothing_is_left(option: str) -> None:
    with pytest.raises(ZeroDivisionError, match="mine"):
        await measure(Backend(fail_from=20).ask, **{option: broken})

    assert other_tasks() == set()


async def test_is_throttled_may_only_answer_what_it_should() -> None:
    with pytest.raises(ConfigError, match="is_throttled must return a bool, seconds to wait or None, got 'yes'"):
        await measure(Backend(fail_from=0).ask, is_throttled=lambda error: "yes")


async def stream() -> object:
    async def words() -> Any:
        yield "blue"

    return words()


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: 3, "<lambda> returned int, which cannot be awaited"),
        (stream, "stream returned a stream: read it to its end"),
    ],
)
async def test_a_call_that_brings_no_answer_is_refused_at_once(call: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        await measure(call)


async def test_progress_names_the_budget_first_and_rises_to_one() -> None:
    seen: list[tuple[float, str]] = []

    await measure(Backend().ask, rates=[1, 5], progress=lambda share, text: seen.append((share, text)))

    shares = [share for share, _ in seen]
    assert seen[0] == (0.0, "at most 61 calls; fewer than 20, too few for a P95, at 1 calls/s")
    assert seen[1] == (2 / 61, "1 calls/s: 1 of 10 sent, 1 unfinished")
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


async def test_too_few_calls_give_no_answer_and_cost_no_more_than_they_must() -> None:
    result = await measure(Backend().ask, rates=[1, 1.5], seconds_per_rate=10.0)

    assert not result.complete
    assert "1.5 calls/s had 15 calls, a P95 needs 20" in said(result)


async def test_a_stretch_too_short_for_a_queue_to_show_ends_it_at_the_first_rate() -> None:
    result = await measure(Backend().ask, rates=[30, 60], seconds_per_rate=1.9)

    assert [point.rate for point in result.points] == [30]
    assert "too short for a queue to show" in said(result)
