"""The settings that `parallax serve` and `parallax run` share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from parallax_core.config.network_options import STUN_PORT, Offline, RelaySettings, StunPort
from parallax_core.config.response_store import ResponseFile, ResponseHours, ResponseSize
from parallax_core.contracts.device import DType


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings(RelaySettings):
    """The settings of every server. ``description`` is the help of the option; ``extra`` holds its other properties."""

    model: Annotated[
        str,
        Meta(description="A folder, a hub id such as org/name, pypi:NAME, or an alias.", extra={"is_argument": True}),
    ] = "smollm2-135m"
    peer_timeout: Annotated[
        float | None,
        Meta(description="The most seconds a worker may be silent (zmq: 2.5).", ge=0.2, le=600, extra={"metavar": "S"}),
    ] = None
    min_peer_timeout: Annotated[
        float,
        Meta(description="Seconds of silence that never count as a loss.", ge=0.2, le=600, extra={"metavar": "S"}),
    ] = 0.8
    step_timeout: Annotated[
        float,
        Meta(
            description="Seconds a stage may compute a step; 0: the larger of 60 and 20 times the longest recent step.",
            ge=0,
            extra={"metavar": "S"},
        ),
    ] = 0.0
    recovery_timeout: Annotated[
        float,
        Meta(
            description="Seconds a request waits for lost stages to be replaced before it ends with an error.",
            ge=1,
            extra={"metavar": "S"},
        ),
    ] = 120.0
    load_timeout: Annotated[
        float, Meta(description="Seconds that loading a stage may take without progress.", ge=1, extra={"metavar": "S"})
    ] = 900.0
    discovery: Annotated[
        bool, Meta(description="Be found on the local network by machines with a join code, or that have joined.")
    ] = True
    offline: Offline = False
    stun_port: StunPort = STUN_PORT
    host: Annotated[str, Meta(description="The address to listen on.", extra={"metavar": "ADDRESS"})] = "127.0.0.1"
    port: Annotated[
        int, Meta(description="The port to listen on; 0 takes a free one.", ge=0, le=65535, extra={"metavar": "PORT"})
    ] = 8000
    dtype: Annotated[DType, Meta(description="The dtype to compute in; auto suits the device.")] = "auto"
    generation_config: Annotated[
        str,
        Meta(
            description="Default sampling: auto (as the model's authors recommend), off (as OpenAI), or a file.",
            extra={"metavar": "auto|off|PATH"},
        ),
    ] = "auto"
    parser: Annotated[
        str,
        Meta(description="The parser of answers: auto suits the model; none; or a name.", extra={"metavar": "NAME"}),
    ] = "auto"
    batching: Annotated[
        str,
        Meta(
            description="The policy for when a step begins, with options as NAME:key=value,...",
            extra={"metavar": "POLICY"},
        ),
    ] = "work-conserving"
    preemption: Annotated[
        str,
        Meta(
            description="The policy that chooses the request to preempt when memory runs out.",
            extra={"metavar": "POLICY"},
        ),
    ] = "lowest-priority"
    routing: Annotated[
        str, Meta(description="The policy that chooses the replica of a request.", extra={"metavar": "POLICY"})
    ] = "least-pending-tokens"
    api_key_file: Annotated[
        Path | None,
        Meta(
            description="A file of API keys with roles, one per line; PARALLAX_API_KEY adds an admin's key.",
            extra={"metavar": "FILE"},
        ),
    ] = None
    insecure: Annotated[bool, Meta(description="Listen beyond loopback without an API key.")] = False
    allowed_host: Annotated[
        tuple[str, ...],
        Meta(
            description="Accept requests for this host name too, as a proxy sends them; may be repeated.",
            extra={"metavar": "NAME"},
        ),
    ] = ()
    tls_cert: Annotated[
        Path | None, Meta(description="Serve HTTPS with this certificate chain, in PEM.", extra={"metavar": "FILE"})
    ] = None
    tls_key: Annotated[
        Path | None,
        Meta(description="The certificate's private key, if it is in a separate file.", extra={"metavar": "FILE"}),
    ] = None
    served_model_name: Annotated[
        tuple[str, ...],
        Meta(
            description="A further name by which clients may call the model; may be repeated.",
            extra={"metavar": "NAME"},
        ),
    ] = ()
    cors_origin: Annotated[
        tuple[str, ...],
        Meta(description="Allow requests from web pages of this origin; may be repeated.", extra={"metavar": "URL"}),
    ] = ()
    max_concurrent: Annotated[
        int, Meta(description="The most concurrent requests per key; 0: no limit.", ge=0, extra={"metavar": "N"})
    ] = 0
    max_per_minute: Annotated[
        int, Meta(description="The most requests per key and minute; 0: no limit.", ge=0, extra={"metavar": "N"})
    ] = 0
    max_output_tokens: Annotated[
        int,
        Meta(
            description="The most output tokens of a key's concurrent requests together; 0: no limit.",
            ge=0,
            extra={"metavar": "N"},
        ),
    ] = 0
    min_priority: Annotated[
        int,
        Meta(
            description="The most urgent priority that a user's key may request; lower is served first.",
            extra={"metavar": "N"},
        ),
    ] = 0
    max_unread: Annotated[
        int,
        Meta(
            description="Megabytes of answers that may wait for clients to read them; a quarter of it per request.",
            ge=1,
            extra={"metavar": "MB"},
        ),
    ] = 1024
    max_running: Annotated[
        int | None,
        Meta(
            description="The most answers a replica computes concurrently; by default derived from its stages.",
            ge=1,
            le=8192,
            extra={"metavar": "N"},
        ),
    ] = None
    max_waiting: Annotated[
        int | None,
        Meta(
            description="Requests that may wait; more get a 429. By default the larger of 256 and 2 x max_running.",
            ge=0,
            le=1_000_000,
            extra={"metavar": "N"},
        ),
    ] = None
    max_batch_tokens: Annotated[
        int | None,
        Meta(
            description="The most tokens a stage computes in a step; by default the backend's choice.",
            ge=1,
            le=65536,
            extra={"metavar": "N"},
        ),
    ] = None
    target_itl: Annotated[
        float | None,
        Meta(
            description="Milliseconds between tokens while prompts run, at most; 0: any. By default 1.4 x the usual.",
            ge=0,
            extra={"metavar": "MS"},
        ),
    ] = None
    memory_fraction: Annotated[
        float,
        Meta(
            description="The share of memory left by the weights that KV pages may take.",
            ge=0.01,
            le=1,
            extra={"metavar": "SHARE"},
        ),
    ] = 0.5
    share_cache: Annotated[
        bool, Meta(description="Let API keys share cached prompts; each then learns what others have sent.")
    ] = False
    default_timeout: Annotated[
        float,
        Meta(
            description="Seconds that a request without a timeout of its own may take in all; 0: no limit.",
            ge=0,
            extra={"metavar": "S"},
        ),
    ] = 86400.0
    lenient: Annotated[bool, Meta(description="Ignore unknown fields with a warning instead of refusing them.")] = False
    response_store: ResponseFile = None
    response_store_size: ResponseSize = 64.0
    response_ttl: ResponseHours = 24.0
    untrained_tools: Annotated[
        bool, Meta(description="Let models that were not trained to call tools do so by a list in JSON.")
    ] = True
    keep_billing_line: Annotated[bool, Meta(description="Keep the line of Claude Code that changes each time.")] = False
    log_prompts: Annotated[bool, Meta(description="Log prompts and other content from clients.")] = False
    max_body: Annotated[
        float, Meta(description="The largest request body, in MiB.", ge=0.01, le=1024, extra={"metavar": "MIB"})
    ] = 2.0
    tokenizer_processes: Annotated[
        int,
        Meta(
            description="The number of processes that parse and tokenize requests.",
            ge=1,
            le=256,
            extra={"metavar": "N"},
        ),
    ] = 2
    request_timeout: Annotated[
        float,
        Meta(
            description="Seconds a client may take to send a request or to read a chunk of the answer.",
            ge=0.1,
            extra={"metavar": "S"},
        ),
    ] = 30.0
    keep_alive: Annotated[
        float,
        Meta(
            description="Seconds for which an idle connection of a client stays open.",
            ge=1,
            le=86400,
            extra={"metavar": "S"},
        ),
    ] = 75.0
    otlp_endpoint: Annotated[
        str | None, Meta(description="Send traces to this OpenTelemetry collector.", extra={"metavar": "URL"})
    ] = None
    drain: Annotated[
        float,
        Meta(description="Seconds that running answers may take to end after SIGTERM.", ge=0, extra={"metavar": "S"}),
    ] = 1.0
    strict_plugins: Annotated[bool, Meta(description="Refuse to start while a plugin cannot be loaded.")] = False
    verbose: Annotated[bool, Meta(description="Log more, with tracebacks.", extra={"short": "-v"})] = False
