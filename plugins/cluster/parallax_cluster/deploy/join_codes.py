"""Makes join codes for the head that listens on this machine."""

from __future__ import annotations

import contextlib
import logging

from parallax_cluster.config.home import cluster_file
from parallax_cluster.membership.code_rules import CodeRecord
from parallax_cluster.membership.join_code import JoinCode, new_secret, write_code
from parallax_cluster.node.membership.code_store import CodeStore
from parallax_core.api import HEAD, JoinMethod, ListeningHead, ParallaxError, TransportSpec
from parallax_core.api.deployment import Offer, PluginHost

logger = logging.getLogger(__name__)


def find_method(offer: Offer[TransportSpec]) -> JoinMethod | None:
    """Return the transport's join method, or None if it has no join codes."""
    return offer.load(offer.spec.joining)() if offer.spec.joining is not None else None


def get_method(plugins: PluginHost, transport: str) -> JoinMethod:
    """Return the part of a transport that makes and uses join codes.

    Raises:
        ParallaxError: if the transport is not installed, or has no such part.
    """
    method = find_method(plugins.transports().get(transport))
    if method is None:
        raise ParallaxError(f"the transport {transport!r} has no join codes", "exchange keys: `parallax keys`")
    return method


def describe_listening(offer: Offer[TransportSpec], *addresses: str) -> tuple[str, bytes] | None:
    """Return at which of ``addresses`` other machines reach a head, and its description; None: they cannot.

    The first that others can use counts: the address that a user gave, which may stand for several, comes before the
    one that the transport advertises.
    """
    method = find_method(offer)
    if method is None:
        return None
    for address in addresses:
        with contextlib.suppress(ParallaxError):  # its port is not known, or it is for this machine only
            return address, method.describe_head(HEAD, address)
    return None


def note_listening(offer: Offer[TransportSpec], *addresses: str) -> ListeningHead | None:
    """Note at which of ``addresses`` a head listens, for new codes, and return it; None: no other machine can join."""
    found = describe_listening(offer, *addresses)
    if found is None:
        return None
    head = ListeningHead(offer.spec.name, found[1])
    try:
        CodeStore(cluster_file()).note_head(head)
    except ParallaxError as error:  # it serves all the same
        logger.warning("`parallax cluster codes new` may make codes for an earlier server: %s", error.message)
    return head


def make_code(plugins: PluginHost, lifetime_s: float, most_uses: int) -> tuple[str, CodeRecord]:
    """Return a new code for the head that listened last on this machine, and what is kept of it.

    Raises:
        ParallaxError: if none has listened yet, or its transport is not installed.
    """
    head = CodeStore(cluster_file()).find_head()
    if head is None:
        message = "no server of this machine has listened for nodes yet"
        raise ParallaxError(message, "codes are made on the server's machine; to start one here: `parallax run MODEL`")
    return make_code_of(head, plugins, lifetime_s, most_uses)


def try_code_of(head: ListeningHead, plugins: PluginHost, lifetime_s: float) -> str:
    """Return a new code of a head for any number of machines; log and return "" if it cannot be stored.

    Raises:
        ParallaxError: if its transport is not installed.
    """
    method, secret = get_method(plugins, head.transport), new_secret()
    try:
        CodeStore(cluster_file()).add(method.derive_proof(secret), lifetime_s, 0)
    except ParallaxError as error:  # machines that have joined before need none
        logger.warning("no join code is made: %s; later `parallax cluster codes new` makes one", error.message)
        return ""
    return write_code(JoinCode(transport=head.transport, secret=secret, head=head.head))


def make_code_of(head: ListeningHead, plugins: PluginHost, lifetime_s: float, most_uses: int) -> tuple[str, CodeRecord]:
    """Return a new code for a head, and what is kept of it.

    Raises:
        ParallaxError: if its transport is not installed.
    """
    secret = new_secret()
    proof = get_method(plugins, head.transport).derive_proof(secret)
    record = CodeStore(cluster_file()).add(proof, lifetime_s, most_uses)
    return write_code(JoinCode(transport=head.transport, secret=secret, head=head.head)), record
