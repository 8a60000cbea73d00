"""How much interactive traffic does your backend bear? Asks any server that speaks OpenAI's chat completions.

    python examples/calibrate.py --url http://127.0.0.1:8000/v1 --model llama --rates 0.5,1,2,4,8 --seconds 60

Sends --prompt at the first rate (calls per second) for --seconds, then at the next, until P95 bends, the backend
throttles, or the rates are used up; then prints the thresholds that it recommends, the curve, and why. It says how many
calls that may be before it sends the first. Take a prompt and --max-tokens that are typical of your interactive calls,
and nothing else running on the backend.

Exit status: 0 if all values were found, 1 if not (the reasons say why), 2 for input or a backend that cannot be used.
"""

import argparse
import asyncio
import importlib.util
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llm_traffic_scheduler import Calibration, ConfigError, calibrate
from llm_traffic_scheduler.simulation.arguments import Parser, above_zero, output_file, picture, whole

if TYPE_CHECKING:
    import httpx
    from matplotlib.axes import Axes

PROMPT: Final = "Explain in one paragraph why the sky is blue."
INK, LINE, TAIL, LIMIT = "#333333", "#0072B2", "#9ecae1", "#D55E00"


class BadAnswer(Exception):
    """What came back is not an answer; `status` and `retry_after` are what calibrate() looks for."""

    def __init__(self, message: str, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


def rates(text: str) -> list[float]:
    return [above_zero(part) for part in text.split(",")]


def parse(arguments: Sequence[str] | None) -> tuple[Parser, argparse.Namespace]:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="up to and with /v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the key")
    parser.add_argument(
        "--rates", type=rates, default="0.5,1,2,4", metavar="R,R,...", help="calls per second, ascending (%(default)s)"
    )
    parser.add_argument("--seconds", type=above_zero, default=60.0, help="for each rate (%(default)g)")
    parser.add_argument("--prompt", default=PROMPT, metavar="TEXT", help="(%(default)r)")
    parser.add_argument("--max-tokens", type=whole(1), default=64, metavar="N", help="per answer (%(default)s)")
    parser.add_argument(
        "--target-p95", type=above_zero, metavar="SECONDS", help="left out: twice the P95 at the lowest rate"
    )
    parser.add_argument("--max-calls", type=whole(1), default=1000, metavar="N", help="never send more (%(default)s)")
    parser.add_argument(
        "--timeout", type=above_zero, default=60.0, metavar="SECONDS", help="for each call (%(default)g)"
    )
    parser.add_argument("--plot", type=picture, metavar="FILE.png", help="draw the curve; needs matplotlib")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write what was found and measured")
    options = parser.parse_args(arguments)
    if options.api_key_env and not os.environ.get(options.api_key_env):
        parser.error(f"--api-key-env names {options.api_key_env}, which is not set or empty")
    needs = [("httpx", "'llm-traffic-scheduler[httpx]'", "it")]
    needs += [("matplotlib", "'llm-traffic-scheduler[simulation]'", "--plot")] if options.plot else []
    for module, extra, what in needs:
        if importlib.util.find_spec(module) is None:
            parser.error(f"{what} needs {module}: pip install {extra}")
    return parser, options


class Backend:
    """One chat completion per `ask`, without streaming; keeps the last error, to be shown if nothing works."""

    def __init__(self, client: "httpx.AsyncClient", options: argparse.Namespace) -> None:
        self._client = client
        self._url = f"{options.url.rstrip('/')}/chat/completions"
        key = os.environ.get(options.api_key_env) if options.api_key_env else None
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._body = {
            "model": options.model,
            "messages": [{"role": "user", "content": options.prompt}],
            "max_tokens": options.max_tokens,
        }
        self.error: BadAnswer | None = None

    async def ask(self) -> None:
        try:
            await self._ask()
        except BadAnswer as error:
            self.error = error
            raise

    async def _ask(self) -> None:
        import httpx

        try:
            response = await self._client.post(self._url, json=self._body, headers=self._headers)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise BadAnswer(f"{self._url} cannot be reached: {str(error) or type(error).__name__}") from error
        if response.status_code != 200:
            raise BadAnswer(self._refusal(response), response.status_code, seconds_of(response))
        try:
            answer = response.json()
        except ValueError:
            raise BadAnswer(f"{self._url} did not answer in JSON: is --url right? It ends in /v1 as a rule") from None
        if not isinstance(answer, dict) or not answer.get("choices"):
            raise BadAnswer(f"{self._url} answered with no chat completion: {short(response.text)}")

    def _refusal(self, response: "httpx.Response") -> str:
        hints = {401: "give the key with --api-key-env NAME", 404: "is --url right, to and with /v1, and --model?"}
        hint = hints.get(response.status_code, short(response.text))
        return f"{self._url} answered {response.status_code}{f': {hint}' if hint else ''}"


def seconds_of(response: "httpx.Response") -> float | None:
    header = response.headers.get("retry-after", "")
    return float(header) if header.isdecimal() else None


def short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:200]} ..."


async def measure(options: argparse.Namespace) -> tuple[Calibration, BadAnswer | None]:
    import httpx

    def show(share: float, text: str) -> None:
        if share == 0:
            print(f"{options.url}: this will send {text}", flush=True)
        elif sys.stderr.isatty():
            print(f"\r{share:4.0%}  {text:60}", end="" if share < 1 else "\n", file=sys.stderr, flush=True)

    # No limits of its own: calls that wait for a connection here would look like a slow backend.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None) as client:
        backend = Backend(client, options)
        result = await calibrate(
            backend.ask,
            rates=options.rates,
            seconds_per_rate=options.seconds,
            target_p95=options.target_p95,
            max_calls=options.max_calls,
            call_timeout=options.timeout,
            progress=show,
        )
    return result, backend.error


def as_json(result: Calibration, options: argparse.Namespace) -> Mapping[str, object]:
    points = [
        {
            "rate": point.rate,
            "rate_achieved": point.rate_achieved,
            "calls": point.calls,
            "failures": point.failures,
            "throttled": point.throttled,
            "p50": point.p50,
            "p95": point.p95,
            "p99": point.p99,
            "mean_unfinished": point.mean_unfinished,
            "max_unfinished": point.max_unfinished,
            "latencies": point.latencies,
        }
        for point in result.points
    ]
    return {
        "url": options.url,
        "model": options.model,
        "max_concurrency": result.max_concurrency,
        "interactive_rps_threshold": result.interactive_rps_threshold,
        "interactive_p95_threshold": result.interactive_p95_threshold,
        "calls": result.calls,
        "reasons": result.reasons,
        "points": points,
    }


def draw(result: Calibration, title: str, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 8), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", color=INK)
    panels = figure.subplots(2, 1, sharex=True, height_ratios=(1.6, 1))
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#dddddd", linewidth=0.6)
    draw_latency(panels[0], result)
    draw_unfinished(panels[1], result)
    for axes in panels:
        axes.set_ylim(bottom=0)
        # Above the panel: in it, there is no corner that a curve may not reach.
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0)
    figure.savefig(path, dpi=110)


def draw_latency(axes: "Axes", result: Calibration) -> None:
    rates = [point.rate_achieved for point in result.points]
    for name, colour in (("p99", TAIL), ("p95", LINE), ("p50", INK)):
        values = [math.nan if (value := getattr(point, name)) is None else value for point in result.points]
        axes.plot(rates, values, "o-", color=colour, label=name.upper())
    if failed := [point.rate_achieved for point in result.points if point.failures]:
        axes.plot(failed, [0.0] * len(failed), "x", color=LIMIT, label="calls failed", clip_on=False)
    if (p95 := result.interactive_p95_threshold) is not None:
        axes.axhline(p95, color=LIMIT, ls="--", lw=1, label=f"interactive_p95_threshold {p95:.3g} s")
    if (rate := result.interactive_rps_threshold) is not None:
        axes.axvline(rate, color=LIMIT, ls=":", lw=1.5, label=f"interactive_rps_threshold {rate:.3g}")
    axes.set_ylabel("latency, seconds")


def draw_unfinished(axes: "Axes", result: Calibration) -> None:
    rates = [point.rate_achieved for point in result.points]
    axes.plot(rates, [point.max_unfinished for point in result.points], "o-", color=TAIL, label="most")
    axes.plot(rates, [point.mean_unfinished for point in result.points], "o-", color=LINE, label="mean")
    if (cap := result.max_concurrency) is not None:
        axes.axhline(cap, color=LIMIT, ls="--", lw=1, label=f"max_concurrency {cap}")
    if (rate := result.interactive_rps_threshold) is not None:
        axes.axvline(rate, color=LIMIT, ls=":", lw=1.5)
    axes.set_ylabel("unfinished calls")
    axes.set_xlabel("calls per second")


def main(arguments: Sequence[str] | None = None) -> int:
    parser, options = parse(arguments)
    try:
        result, error = asyncio.run(measure(options))
        if not result.points and error is not None and error.status != 429:
            parser.error(str(error))
        print(result.text())
        if options.json:
            options.json.write_text(json.dumps(as_json(result, options)) + "\n", encoding="utf-8")
        if options.plot and result.points:
            draw(result, f"Latency by rate of calls: {options.model} at {options.url}", options.plot)
    except BrokenPipeError:
        # Whoever read our output has seen enough; without this Python complains once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ConfigError, OSError) as fault:
        parser.error(str(fault))
    except KeyboardInterrupt:
        return 130
    return 0 if result.complete else 1


if __name__ == "__main__":
    sys.exit(main())
