"""The section ``[worker]``: the options of ``parallax worker`` and most of ``parallax join``."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from parallax_core.base.ids import HEAD
from parallax_core.config.backend_option import BackendOptionTexts
from parallax_core.config.network_options import LogFormat, Offline, PeerTimeout, RelaySettings


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSettings(RelaySettings):
    """The settings of every node that runs stages.

    ``description`` is the help of the option; ``extra`` holds its other properties.
    """

    listen: Annotated[
        str | None,
        Meta(
            description="The address at which other stages reach this one; by default a free port of this machine.",
            extra={"metavar": "ADDRESS"},
        ),
    ] = None
    backend: Annotated[
        str | None,
        Meta(description="Offer only this backend; by default all available ones.", extra={"metavar": "NAME"}),
    ] = None
    backend_option: BackendOptionTexts = ()
    memory: Annotated[
        float | None,
        Meta(description="Gigabytes for layers; by default the free memory, if known.", gt=0, extra={"metavar": "GB"}),
    ] = None
    max_context: Annotated[
        int | None,
        Meta(
            description="The most tokens of a request, prompt and answer, on this node; by default the model's.",
            ge=1,
            le=10_000_000,
            extra={"metavar": "N"},
        ),
    ] = None
    allow_model: Annotated[
        tuple[str, ...],
        Meta(
            description="Load only these models: a pattern such as org/*, or a folder; may be repeated.",
            extra={"metavar": "MODEL"},
        ),
    ] = ()
    label: Annotated[
        tuple[str, ...],
        Meta(
            description="A label of this machine, such as room=attic; may be repeated.", extra={"metavar": "KEY=VALUE"}
        ),
    ] = ()
    peer_timeout: PeerTimeout = None
    drain: Annotated[
        float,
        Meta(
            description="Seconds after SIGTERM for the server to replace this node; 0: end at once.",
            ge=0,
            extra={"metavar": "S"},
        ),
    ] = 30.0
    offline: Offline = False
    verbose: Annotated[bool, Meta(description="Log more, with tracebacks.", extra={"short": "-v"})] = False
    log_format: LogFormat = None

    @property
    def memory_bytes(self) -> int | None:
        """The memory in bytes; None: all that is free."""
        return None if self.memory is None else int(self.memory * 10**9)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSettings(NodeSettings):
    """The settings of a worker."""

    model: Annotated[
        str,
        Meta(description="With --announce: the model of the layers.", extra={"is_argument": True, "metavar": "MODEL"}),
    ] = ""
    layers: Annotated[
        str | None,
        Meta(
            description="With --announce: the layers of this node, from A up to but not B.",
            pattern="^[0-9]{1,9}-[0-9]{1,9}$",
            extra={"metavar": "A-B"},
        ),
    ] = None
    announce: Annotated[
        tuple[str, ...],
        Meta(
            description="Announce the layers, by a join code, where `parallax serve --find` looks; may be repeated.",
            extra={"metavar": "CODE"},
        ),
    ] = ()
    discovery: Annotated[
        bool, Meta(description="With --announce: look on the local network, too, for the server of the code.")
    ] = True
    deployment: Annotated[
        str,
        Meta(
            description="The kind of deployment; `parallax plugins` lists them. If empty, other settings choose it.",
            extra={"metavar": "NAME", "advanced": True},
        ),
    ] = ""
    connect: Annotated[
        str,
        Meta(
            description="The address of the head, such as tcp://10.0.0.5:9000; see `parallax serve --listen`.",
            extra={"metavar": "ADDRESS"},
        ),
    ] = ""
    node: Annotated[
        str | None,
        Meta(description="The name of this node; by default derived from the host name.", extra={"metavar": "NAME"}),
    ] = None
    head: Annotated[str, Meta(description="The name of the head's node.", extra={"metavar": "NAME"})] = HEAD
    transport: Annotated[str, Meta(description="The transport between nodes.", extra={"metavar": "NAME"})] = "zmq"
    supervised: Annotated[
        bool, Meta(description="Exit when standard input closes, and do not rejoin; used by `parallax serve`.")
    ] = False
    as_joined: Annotated[
        bool, Meta(description="Measure the device and rejoin also with --supervised; used by `parallax run`.")
    ] = False
    trust_head: Annotated[
        str | None,
        Meta(
            description="The public key of the head, in hexadecimal; used by workers for the nodes they start.",
            pattern="^([0-9a-f]{2})+$",
            extra={"metavar": "KEY"},
        ),
    ] = None


def name_node(number: int) -> str:
    """Return ``HOST/number`` as the node's name; a key for the host name is valid for it."""
    host = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in socket.gethostname())
    return f"{host.strip('._-')[:64] or 'node'}/{number}"
