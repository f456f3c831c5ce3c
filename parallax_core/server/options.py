"""What stands between the network and the routes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from parallax_core.server.api_keys import ApiKeys

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
"""What a server that only this machine reaches goes by."""
MAX_BODY_BYTES = 2 * 2**20
"""Some 500,000 tokens of English text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerOptions:
    """How the server meets its clients. Filled by the command line."""

    keys: ApiKeys = field(default_factory=ApiKeys)
    """Without any, whoever reaches the server may do everything."""
    hosts: Collection[str] = ()
    """The names it goes by, of which a request has to use one; none: any."""
    max_concurrent: int = 0
    """Requests one key may have under way at once; without keys, one address. 0: any number."""
    max_per_minute: int = 0
    """Requests one key may make a minute; without keys, one address. 0: any number."""
    max_output_tokens: int = 0
    """Output tokens that the requests of one key under way may come to; without keys, of one address. 0: any number."""
    min_priority: int = 0
    """The most urgent priority that a user's key may ask for; lower is served first."""
    cors_origins: Collection[str] = ()
    """Web pages of these origins may ask; none by default."""
    tls_cert: Path | None = None
    """A certificate chain in PEM."""
    tls_key: Path | None = None
    """Its private key, if that is not in the same file."""
    is_lenient: bool = False
    """Name unknown fields in a response header and the log, instead of refusing them."""
    logs_bodies: bool = False
    """Put what clients send into the access log; prompts are private otherwise."""
    otlp_endpoint: str = ""
    """Where traces go; nowhere by default."""
    max_body_bytes: int = MAX_BODY_BYTES
    """The largest body of a request."""
    tokenizer_processes: int = 2
    """So many requests are read and tokenized at a time."""
    request_s: float = 30.0
    """Seconds in which a request must have arrived whole, and a client must take what it is sent."""
    drain_s: float = 1.0
    """Seconds that answers under way are given to end, once the server is told to."""
