"""Finds the API of the server that a command is to use."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Annotated

import typer

from parallax_core.api.cli import DEFAULT_URL

JOINED = "parallax.joined_api"
"""The entry-point group of a function that returns the URL of the API of a server that this machine has joined; empty:
there is none. The distribution that forms clusters has one."""

UrlOption = Annotated[
    str | None,
    typer.Option(
        help="The API of a server; by default of the one that this machine has joined, or of a local one.",
        metavar="URL",
    ),
]


def find_url(url: str | None) -> str:
    """Return the URL of an API: ``url``, else that of the server that this machine has joined, else the default.

    The server comes before the default port, because it is the one that is meant; any program may have that port.
    """
    return url or next(filter(None, (point.load()() for point in entry_points(group=JOINED))), DEFAULT_URL)
