"""STUN servers: which ones `parallax network` asks, and the one a head runs."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from parallax_cluster.deploy.join_codes import get_method
from parallax_cluster.deploy.joined import list_joined
from parallax_cluster.membership.join_code import is_code, read_code
from parallax_cluster.node.network.responder import answering
from parallax_core.api import ParallaxError, UsageError
from parallax_core.api.deployment import STUN_PORT, PluginHost

MOST_ASKED = 8
"""The most servers that are asked."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """A server to ask."""

    host: str
    """A name or an IP address."""
    port: int = STUN_PORT
    """Where it tells addresses, over UDP and TCP; one of Parallax also at the next port."""
    cluster: str = ""
    """The address where its cluster listens; empty: it is not known to have one."""


@contextmanager
def telling_addresses(places: Sequence[str], port: int) -> Iterator[None]:
    """Answer STUN requests at the head's address within this context.

    Args:
        places: addresses of the head; the first with a host counts. Nobody else can reach one without.
        port: the first of two ports; 0: answer none.
    """
    host = next((found for place in places if (found := urlsplit(place).hostname)), None)
    with ExitStack() as stack:
        if host is not None and port:
            try:
                stack.enter_context(answering(_resolve(host), port))
            except (ParallaxError, OSError) as error:  # machines can join all the same
                logger.warning("`parallax network` cannot ask this server: %s", error)
        yield


def _resolve(host: str) -> str:
    """Return the IP address of a host of this machine.

    Raises:
        OSError: if the host is unknown.
    """
    if host == "*":
        return "0.0.0.0"  # noqa: S104 -- where the head listens
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])


def list_asked(words: Sequence[str], plugins: PluginHost) -> list[Asked]:
    """Return the servers that a user names, or without any those that this machine has joined by a code.

    Args:
        words: a join code, the address of a server that machines join, or the HOST:PORT of a STUN server.
        plugins: the transports that read codes.

    Raises:
        UsageError: if one is neither of them, or there are too many.
        ParallaxError: if the transport of a code is not installed.
    """
    if len(words) > MOST_ASKED:
        raise UsageError(f"{len(words)} servers are too many", f"name {MOST_ASKED} at most")
    if words:
        return list(dict.fromkeys(asked for word in words for asked in _read_asked(word, plugins)))
    return [_read_address(joined.address) for joined in list_joined()[:MOST_ASKED]]


def _read_asked(word: str, plugins: PluginHost) -> list[Asked]:
    if is_code(word):
        code = read_code(word)
        if not code.head:
            raise UsageError("this code has no address", "use the whole code of the server")
        return [_read_address(each) for each in get_method(plugins, code.transport).list_addresses(code.head)]
    return [_read_address(word)] if "://" in word else [_read_stun(word)]


def _read_address(address: str) -> Asked:
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{address!r} is no address: {error}", HINT) from error
    if not host or not port:
        raise UsageError(f"{address!r} is no address of a server", HINT)
    return Asked(host, cluster=address)


def _read_stun(word: str) -> Asked:
    try:
        parts = urlsplit(f"//{word}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{word!r} is no server: {error}", HINT) from error
    if not host or parts.path or parts.query or "@" in word:
        raise UsageError(f"{word!r} is neither a join code nor a server", HINT)
    return Asked(host, port or STUN_PORT)


HINT = "name a join code, an address such as tcp://10.0.0.5:9000, or HOST:PORT of a STUN server"
