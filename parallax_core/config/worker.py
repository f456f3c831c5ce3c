"""The section ``[worker]``, of which the options of ``parallax worker`` are made."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSettings:
    """Which head a node joins, and as what. A description is the help of the option, ``extra`` what else it has."""

    connect: Annotated[
        str,
        Meta(
            description="Where the head listens, such as tcp://10.0.0.5:9000; see `parallax serve --listen`.",
            extra={"metavar": "ADDRESS"},
        ),
    ] = ""
    listen: Annotated[
        str | None,
        Meta(
            description="Where other stages reach this one; by default a free port of this machine.",
            extra={"metavar": "ADDRESS"},
        ),
    ] = None
    node: Annotated[
        str | None,
        Meta(description="The name of this node; by default made of the machine's name.", extra={"metavar": "NAME"}),
    ] = None
    head: Annotated[str, Meta(description="The name of the head's node.", extra={"metavar": "NAME"})] = "head"
    backend: Annotated[
        str | None,
        Meta(description="Offer only this backend; by default all that run here.", extra={"metavar": "NAME"}),
    ] = None
    transport: Annotated[str, Meta(description="How nodes talk.", extra={"metavar": "NAME"})] = "zmq"
    memory: Annotated[
        float | None,
        Meta(
            description="Gigabytes that weights and pages may take here; by default what is free, where that is known.",
            gt=0,
            extra={"metavar": "GB"},
        ),
    ] = None
    allow_model: Annotated[
        tuple[str, ...],
        Meta(
            description="Load these models only: a pattern such as org/*, or a folder; may be given again.",
            extra={"metavar": "MODEL"},
        ),
    ] = ()
    peer_timeout: Annotated[
        float,
        Meta(
            description="Seconds of silence after which a node counts as lost.", ge=0.2, le=600, extra={"metavar": "S"}
        ),
    ] = 2.5
    supervised: Annotated[
        bool, Meta(description="End with standard input and do not join again; for `parallax serve`.")
    ] = False
    verbose: Annotated[bool, Meta(description="Log more, with tracebacks.", extra={"short": "-v"})] = False


def name_node(number: int) -> str:
    """Return a name for the node whose process is ``number``: a key for the machine's name holds for it."""
    host = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in socket.gethostname())
    return f"{host.strip('._-')[:64] or 'node'}/{number}"
