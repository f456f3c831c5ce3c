"""Makes the transports by which nodes of this machine connect and listen."""

from __future__ import annotations

from collections.abc import Mapping

from parallax_core.base.errors import UsageError
from parallax_core.contracts.transport import Transport, TransportPlan, TransportSpec
from parallax_core.node.channel import STRANGERS
from parallax_core.plugins.registry import Offer


def choose_listen(offer: Offer[TransportSpec], listen: str | None, near: str, node: str) -> str:
    """Return the address at which a node listens: the one that its user gives, or one that the transport chooses.

    Args:
        offer: the transport.
        listen: what the user gives; None: nothing.
        near: an address on the network where others have to reach the node.
        node: its name.

    Raises:
        UsageError: if the user gives none, and the transport cannot choose one.
    """
    if listen:
        return listen
    if offer.spec.place_near is None:
        message = f"the transport {offer.spec.name!r} cannot choose an address for this node to listen at"
        raise UsageError(message, "give an address that other nodes can reach: --listen ADDRESS")
    return offer.load(offer.spec.place_near)(near, node)


def make_transport(
    offer: Offer[TransportSpec], node: str, listen: str, heads: Mapping[str, bytes], timeout_s: float | None
) -> Transport:
    """Return the transport of the node called ``node``, not started; see `TransportPlan`.

    Without ``timeout_s``, the usual one of the transport holds.
    """
    timeout_s = timeout_s or offer.spec.timeout_s
    plan = TransportPlan(node=node, listen=listen, timeout_s=timeout_s, strangers=STRANGERS, heads=heads)
    return offer.load(offer.spec.factory)(plan)
