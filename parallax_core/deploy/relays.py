"""Makes the relay of a machine from its settings."""

from __future__ import annotations

from collections.abc import Callable

from parallax_core.config.relay import RelaySettings
from parallax_core.node.relay.limits import RelayLimits
from parallax_core.node.relay.server import RelayServer

MEGA, GIGA = 1e6, 1e9


def make_relay(settings: RelaySettings, is_member: Callable[[str], bool]) -> RelayServer | None:
    """Return the relay that settings ask for; None: none. It is for nodes of whose names ``is_member`` is true."""
    if not settings.relay:
        return None
    limits = RelayLimits(bytes_per_s=settings.relay_rate * MEGA, bytes_per_day=settings.relay_quota * GIGA)
    return RelayServer(limits, is_member)
