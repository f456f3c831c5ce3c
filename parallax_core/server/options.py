"""Holds the options of the HTTP server."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parallax_core.server.api_keys import ApiKeys

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
"""The names of a server that is reachable from this machine only."""
MAX_BODY_BYTES = 2 * 2**20
"""The default limit of a body: about 500,000 tokens of English text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerOptions:
    """The options of the HTTP server. The command line fills them in."""

    keys: ApiKeys = field(default_factory=ApiKeys)
    """Without any, every client may do everything."""
    is_exposed: bool = False
    """Whether others than users of this machine reach the server without a key."""
    hosts: Collection[str] = ()
    """The names of the server, one of which a request's ``Host`` has to be; empty: any."""
    max_concurrent: int = 0
    """Requests that one key, or without keys one address, may run at the same time; 0: unlimited."""
    max_per_minute: int = 0
    """Requests per minute of one key, or without keys of one address; 0: unlimited."""
    max_output_tokens: int = 0
    """Output tokens that the running requests of one key, or without keys of one address, may generate together; 0:
    unlimited."""
    min_priority: int = 0
    """The lowest, most urgent ``priority`` that a key of the role ``user`` may ask for."""
    cors_origins: Collection[str] = ()
    """The origins whose web pages may send requests; none by default."""
    served_names: Collection[str] = ()
    """What clients may call the first model besides its id."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """What clients may call models besides their ids: the id of the model by each such name."""
    adapters: Sequence[str] = ()
    """The LoRA adapters that are served from the start, each as ``NAME=PATH``; for the plugin that loads them."""
    tls_cert: Path | None = None
    """A certificate chain in PEM."""
    tls_key: Path | None = None
    """The private key, if it is not in the same file."""
    shares_cache: bool = False
    """Let clients with different keys share cached prompts, and see how much of theirs others have sent."""
    default_timeout_s: float | None = None
    """Seconds from its arrival after which a request without a ``timeout`` ends with an error; None: any time."""
    is_lenient: bool = False
    """Name unknown fields in a response header and the log, instead of refusing them."""
    response_store: Path | None = None
    """The file of kept responses; None: memory."""
    response_bytes: int = 64 * 2**20
    """The size of all kept responses, in bytes; 0: none are kept."""
    response_ttl_s: float = 86400.0
    """Seconds for which a response is kept after its last use."""
    keeps_billing_line: bool = False
    """Keep the line that Claude Code puts before the system prompt and changes with every request. Without it, the
    prefix cache has the prompts of a conversation."""
    lists_calls: bool = True
    """Let models without a format for calls that is known call tools of their own accord, by a list in JSON."""
    logs_bodies: bool = False
    """Write request bodies to the access log; they contain prompts, which are private."""
    otlp_endpoint: str = ""
    """The collector that gets traces; empty: no traces."""
    max_body_bytes: int = MAX_BODY_BYTES
    """The largest body of a request, in bytes."""
    tokenizer_processes: int = 2
    """The number of processes that read and tokenize requests, one at a time each."""
    request_s: float = 30.0
    """Seconds for a request to arrive completely, and for a client to read sent data."""
    keep_alive_s: float = 75.0
    """Seconds for which an idle connection stays open: longer than proxies keep theirs, so that they close it first."""
    drain_s: float = 1.0
    """Seconds that running answers have to end once the server is told to stop."""
