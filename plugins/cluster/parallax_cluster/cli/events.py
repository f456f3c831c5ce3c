"""The command ``parallax cluster events``."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Annotated, Any

import typer

from parallax_client.client import Client
from parallax_client.server_url import UrlOption, find_url
from parallax_cluster.cli.status import TIMEOUT_S
from parallax_core.api import UsageError
from parallax_core.api.cli import new_app

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DURATION = re.compile(r"(\d{1,6})([smhd])")

app = new_app()


@app.command()
def events(
    since: Annotated[
        str, typer.Option(help="How far to look back, such as 90s, 30m, 1h or 2d.", metavar="TIME")
    ] = "1d",
    url: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what has happened to the cluster of a running server, also before it was started again.

    Each line has a time of this machine, what happened, and to which node or model: nodes joined, left or were drained,
    layers were planned elsewhere, and why, or a model could answer or not. A key is taken from PARALLAX_API_KEY.
    """
    found = Client(find_url(url), TIMEOUT_S).history(read_duration(since))
    print(json.dumps(found) if as_json else "\n".join(map(render, found)) or "nothing has happened")


def read_duration(text: str) -> float:
    """Return the seconds of a text such as ``90s``, ``30m``, ``1h`` or ``2d``.

    Raises:
        UsageError: if it has another form.
    """
    if (match := DURATION.fullmatch(text)) is None:
        raise UsageError(f"--since {text!r} is no time", "such as 90s, 30m, 1h or 2d")
    return float(int(match[1]) * UNITS[match[2]])


def render(event: dict[str, Any]) -> str:
    """Return the line of an event."""
    at = datetime.fromtimestamp(event["time"]).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"{at}  {event['kind']:12}  {event['subject']}  {event['text']}".rstrip()
