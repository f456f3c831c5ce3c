"""Makes the relay of a machine from its settings."""

from __future__ import annotations

from collections.abc import Callable

from parallax_cluster.node.relay.limits import RelayLimits
from parallax_cluster.node.relay.offer import RelayOffer
from parallax_cluster.node.relay.server import RelayServer
from parallax_core.api.deployment import RelayLimitSettings, RelaySettings

MEGA, GIGA = 1e6, 1e9


def read_limits(settings: RelayLimitSettings) -> RelayLimits:
    """Return the limits that settings ask for."""
    return RelayLimits(bytes_per_s=settings.relay_rate * MEGA, bytes_per_day=settings.relay_quota * GIGA)


def make_relay(settings: RelaySettings, is_member: Callable[[str], bool]) -> RelayServer | None:
    """Return a head's relay for nodes whose names ``is_member`` accepts, or None if it does not relay."""
    return RelayServer(read_limits(settings), is_member) if settings.relay else None


def make_offer(settings: RelaySettings) -> RelayOffer | None:
    """Return a node's relay, or None if it does not relay; its head tells it who may use it."""
    return RelayOffer(read_limits(settings)) if settings.relay else None
