"""Finds the API of the server that a command is to use."""

from __future__ import annotations

from typing import Annotated

import typer

from parallax_core.cli.client import DEFAULT_URL
from parallax_core.cli.worker_record import find_workers

UrlOption = Annotated[
    str | None,
    typer.Option(
        help="The API of a server; by default of the one that this machine has joined, or of a local one.",
        metavar="URL",
    ),
]


def find_url(url: str | None) -> str:
    """Return the URL of an API: ``url``, else that of a worker of this machine that forwards, else the default.

    A worker comes before the default port, because it says which server is meant; any program may have that port.
    """
    return url or next((worker.api for worker in find_workers() if worker.api), DEFAULT_URL)
