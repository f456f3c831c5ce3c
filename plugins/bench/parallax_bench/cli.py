"""Measure the speed of servers."""

from __future__ import annotations

import asyncio
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from parallax_bench.arrival import follow_trace, make_gaps
from parallax_bench.client import Target, find_model, send_requests
from parallax_bench.dataset import Sizes
from parallax_bench.load import DEFAULT_LEN, Wanted, load_dataset
from parallax_bench.report import print_charts, print_summary, write_chart, write_json, write_page
from parallax_bench.request import BenchRequest, BenchResult
from parallax_bench.summary import parse_limits, summarize
from parallax_core.api import ParallaxError

app = typer.Typer(
    help="Measure the speed of servers.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def bench() -> None:
    """Measure the speed of servers."""


@app.command()
def serve(  # noqa: PLR0913, PLR0917 -- options of a command
    url: Annotated[str, typer.Option(help="The server's address.", metavar="URL")] = "http://127.0.0.1:8000",
    model: Annotated[str, typer.Option(help="The model to ask; by default the server's first.", metavar="MODEL")] = "",
    dataset: Annotated[
        str,
        typer.Option(
            help="random, shared-prefix, file:PATH, sharegpt:PATH, conversations:PATH or trace:PATH.", metavar="KIND"
        ),
    ] = "random",
    num_prompts: Annotated[int, typer.Option(help="The number of requests.", min=1, metavar="N")] = 100,
    input_len: Annotated[int, typer.Option(help="Words per prompt, about a token each.", min=1, metavar="N")] = 128,
    output_len: Annotated[
        int | None, typer.Option(help="Tokens per answer; by default as recorded, or 128.", min=1, metavar="N")
    ] = None,
    spread: Annotated[
        float, typer.Option(help="Vary lengths by this share; 0: all are equal.", min=0, max=1, metavar="SHARE")
    ] = 0.0,
    prefix_len: Annotated[int, typer.Option(help="Words per shared prefix.", min=1, metavar="N")] = 512,
    groups: Annotated[int, typer.Option(help="The number of different prefixes.", min=1, metavar="N")] = 1,
    length_scale: Annotated[
        float, typer.Option(help="Multiply the lengths of a trace by this.", min=0.0001, max=100, metavar="TIMES")
    ] = 1.0,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Requests a second; by default at the times of a trace, or all at once (inf).", min=0.001, metavar="N"
        ),
    ] = None,
    speed: Annotated[
        float, typer.Option(help="Play a trace this many times as fast.", min=0.001, metavar="TIMES")
    ] = 1.0,
    burstiness: Annotated[
        float,
        typer.Option(
            help="Of arrivals: 1 is a Poisson process, below 1 burstier, above 1 more even.", min=0.01, metavar="N"
        ),
    ] = 1.0,
    concurrency: Annotated[int, typer.Option(help="The most requests at once; 0: no limit.", min=0, metavar="N")] = 0,
    slo: Annotated[
        str, typer.Option(help="Limits in ms for goodput: ttft=500,itl=200, and tpot, e2e.", metavar="LIMITS")
    ] = "",
    temperature: Annotated[float, typer.Option(help="The sampling temperature.", min=0, max=2, metavar="T")] = 0.0,
    ignore_eos: Annotated[bool, typer.Option(help="Ask for answers of full length.")] = True,  # noqa: FBT002 -- a flag
    warmup: Annotated[int, typer.Option(help="Requests sent first, and not measured.", min=0, metavar="N")] = 1,
    seed: Annotated[int, typer.Option(help="The seed of prompts and arrivals.", metavar="N")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write all figures here, as JSON.", metavar="FILE")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write the plots here, as SVG.", metavar="FILE")] = None,
    page: Annotated[Path | None, typer.Option("--html", help="Write a report with plots here.", metavar="FILE")] = None,
) -> None:
    """Send requests to a server, and measure the answers.

    It has to have OpenAI's API. The key in PARALLAX_API_KEY is sent if it is set.
    """
    settings = {name: value for name, value in locals().items() if name not in {"out", "page", "svg"}}
    limits = parse_limits(slo)
    for path in filter(None, (out, page, svg)):
        check_place(path)
    is_shared = dataset == "shared-prefix"
    sizes = Sizes(
        input_len=input_len,
        output_len=output_len or DEFAULT_LEN,
        spread=spread,
        prefix_len=prefix_len if is_shared else 0,
        groups=groups if is_shared else 1,
    )
    num = num_prompts + warmup
    wanted = Wanted(num=num, sizes=sizes, output_len=output_len, length_scale=length_scale, seed=seed)
    requests = load_dataset(dataset, wanted)
    target = Target(
        url=(url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1"),
        model=model,
        api_key=os.environ.get("PARALLAX_API_KEY", ""),
        ignores_eos=ignore_eos,
        temperature=temperature,
    )
    if not model:
        target = replace(target, model=asyncio.run(find_model(target)))
    settings |= {"url": target.url, "model": target.model}
    measured = requests[warmup:] or requests  # a trace may have fewer
    if rate is None and measured[0].at is not None:
        gaps = list(follow_trace(measured, speed))
    else:
        gaps = list(make_gaps(len(measured), math.inf if rate is None else rate, burstiness, seed))
    results = asyncio.run(measure(target, requests, gaps, concurrency))
    summary = summarize(results, limits)
    print_summary(summary)
    print_charts(results)
    if out is not None:
        write_json(out, summary, results, settings)
    if svg is not None:
        write_chart(svg, results)
    if page is not None:
        write_page(page, summary, results, settings)
    if summary.failed == summary.requests:
        raise ParallaxError(f"every request failed: {next(iter(summary.errors))}", "look at the log of the server")


def check_place(path: Path) -> None:
    """Refuse a file that cannot be written, before the run.

    Raises:
        ParallaxError: giving the reason.
    """
    try:
        path.open("ab").close()
    except OSError as error:
        raise ParallaxError(f"{path} cannot be written: {error.strerror}", "give another path") from error


async def measure(
    target: Target, requests: list[BenchRequest], gaps: list[float], concurrency: int
) -> list[BenchResult]:
    """Send the requests in excess of ``gaps`` as a warm-up, then the others with progress; return their results."""
    num_warm = len(requests) - len(gaps)
    await send_requests(target, requests[:num_warm], [0.0] * num_warm, 0, lambda _: None)
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("requests", total=len(gaps))
        return await send_requests(target, requests[num_warm:], gaps, concurrency, lambda _: progress.advance(bar))
