"""The settings that `parallax serve` and `parallax run` share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from parallax_core.config.marks import ADVANCED, HTTP, MODEL, NETWORK
from parallax_core.config.network_options import LogFormat, Offline
from parallax_core.config.server_tuning import ServerTuning
from parallax_core.contracts.device import DType


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings(ServerTuning):
    """The settings of every server. ``description`` is the help of the option; ``extra`` holds its other properties."""

    model: Annotated[
        str,
        Meta(description="A folder, a hub id such as org/name, pypi:NAME, or an alias.", extra={"is_argument": True}),
    ] = "smollm2-135m"
    discovery: Annotated[
        bool,
        Meta(description="Be found on the local network by machines with a join code, or that have joined."),
        NETWORK,
    ] = True
    offline: Annotated[Offline, NETWORK] = False
    host: Annotated[str, Meta(description="The address to listen on.", extra={"metavar": "ADDRESS"}), HTTP] = (
        "127.0.0.1"
    )
    port: Annotated[
        int,
        Meta(description="The port to listen on; 0 takes a free one.", ge=0, le=65535, extra={"metavar": "PORT"}),
        HTTP,
    ] = 8000
    dtype: Annotated[DType, Meta(description="The dtype to compute in; auto suits the device."), MODEL] = "auto"
    parser: Annotated[
        str,
        Meta(description="The parser of answers: auto suits the model; none; or a name.", extra={"metavar": "NAME"}),
        MODEL,
    ] = "auto"
    api_key_file: Annotated[
        Path | None,
        Meta(
            description="A file of API keys with roles, one per line; PARALLAX_API_KEY adds an admin's key.",
            extra={"metavar": "FILE"},
        ),
        HTTP,
    ] = None
    insecure: Annotated[bool, Meta(description="Listen beyond loopback without an API key."), HTTP] = False
    tls_cert: Annotated[
        Path | None,
        Meta(description="Serve HTTPS with this certificate chain, in PEM.", extra={"metavar": "FILE"}),
        HTTP,
    ] = None
    tls_key: Annotated[
        Path | None,
        Meta(description="The certificate's private key, if it is in a separate file.", extra={"metavar": "FILE"}),
        HTTP,
    ] = None
    served_model_name: Annotated[
        tuple[str, ...],
        Meta(
            description="A further name by which clients may call the model; may be repeated.",
            extra={"metavar": "NAME"},
        ),
        MODEL,
    ] = ()
    adapter: Annotated[
        tuple[str, ...],
        Meta(
            description="Serve a LoRA adapter from a folder as a model of this name; may be repeated.",
            extra={"metavar": "NAME=PATH"},
        ),
        MODEL,
    ] = ()
    max_running: Annotated[
        int | None,
        Meta(
            description="The most answers a replica computes concurrently; by default derived from its stages.",
            ge=1,
            le=8192,
            extra={"metavar": "N"},
        ),
        MODEL,
    ] = None
    drain: Annotated[
        float,
        Meta(description="Seconds that running answers may take to end after SIGTERM.", ge=0, extra={"metavar": "S"}),
    ] = 1.0
    verbose: Annotated[bool, Meta(description="Log more, with tracebacks.", extra={"short": "-v"})] = False
    log_format: Annotated[LogFormat, ADVANCED] = None
