"""Run the requests of a file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from parallax_batch.child_server import run_server
from parallax_batch.files import ResultFile, count_requests, read_requests
from parallax_batch.run import BatchCount, BatchRunner
from parallax_client.client import Client
from parallax_client.server_url import UrlOption, find_url
from parallax_core.api import ParallaxError
from parallax_core.api.cli import UsageError, make_display, new_app

ANSWER_S = 3600.0
"""Seconds that an answer may take."""

app = new_app()


@app.command()
def batch(
    file: Annotated[Path, typer.Argument(help="The requests: JSON lines, as in OpenAI's batches.")],
    serve_options: Annotated[
        list[str] | None, typer.Argument(metavar="[-- OPTIONS]", help="With --model: options of `parallax serve`.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The answers; by default NAME.out.jsonl beside FILE.", metavar="FILE")
    ] = None,
    errors: Annotated[
        Path | None, typer.Option(help="The failed requests; by default NAME.errors.jsonl beside FILE.", metavar="FILE")
    ] = None,
    url: UrlOption = None,
    model: Annotated[
        str | None, typer.Option(help="Serve this model for the batch, instead of --url.", metavar="MODEL")
    ] = None,
    concurrency: Annotated[
        int, typer.Option(help="The most requests at the same time.", min=1, max=1024, metavar="N")
    ] = 32,
) -> None:
    """Run the requests of a file, at the lowest priority, and write the answers to another.

    Run it again to go on after an interruption: requests that have an answer are skipped, those that failed are sent
    again. A key is taken from PARALLAX_API_KEY. A line of the file:

    {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "smollm2-135m", "messages":
    [{"role": "user", "content": "hello"}]}}

    Example with a server of its own: parallax batch requests.jsonl --model smollm2-135m -- --backend torch
    """
    output = output or file.with_name(f"{file.stem}.out.jsonl")
    errors = errors or file.with_name(f"{file.stem}.errors.jsonl")
    total = count_requests(file)
    _check_paths([file, output, errors])
    with (
        ResultFile(output, is_kept=True) as answers,
        _connect(url, model, serve_options or []) as client,
        ResultFile(errors, is_kept=False) as failures,
        make_display() as display,
    ):
        runner = BatchRunner(client, read_requests(file), answers, failures)
        try:
            count = runner.run(concurrency, lambda done: display("batch", done, total, "items"))
        except ParallaxError as error:
            raise ParallaxError(error.message, "answers so far are kept: run it again to go on") from error
    _report(count, output, errors)


def _check_paths(paths: Sequence[Path]) -> None:
    if len({path.resolve() for path in paths}) < len(paths):
        message = "the requests, the answers and the errors must be three different files"
        raise UsageError(message, "change --output or --errors")


@contextlib.contextmanager
def _connect(url: str | None, model: str | None, options: Sequence[str]) -> Iterator[Client]:
    """Yield a client of the server to use: one that runs, or one of the batch's own."""
    if model is not None and url is not None:
        raise UsageError("--url and --model contradict each other", "give one of them")
    if model is None and options:
        raise UsageError(f"'{options[0]}' is an option of a server to start", "name its model with --model")
    if model is None:
        client = Client(find_url(url), ANSWER_S)
        client.model()  # a wrong address or key is one error, not one for each request
        yield client
        return
    with run_server(model, options) as client:
        yield client


def _report(count: BatchCount, output: Path, errors: Path) -> None:
    """Say what became of the requests.

    Raises:
        ParallaxError: if some have failed.
    """
    skipped = f", {count.skipped} had an answer already" if count.skipped else ""
    print(f"{count.answered} of {count.total} requests answered{skipped}: {output}", file=sys.stderr)
    if count.failed:
        message = f"{count.failed} of {count.total} requests failed: {errors}"
        raise ParallaxError(
            message, "correct them, and run the same command again: requests with an answer are skipped"
        )
    errors.unlink(missing_ok=True)
