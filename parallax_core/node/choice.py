"""Which backend runs the model, and how nodes reach each other."""

from __future__ import annotations

from collections.abc import Callable

from parallax_core.base.errors import ParallaxError
from parallax_core.contracts.backend import Availability, BackendSpec
from parallax_core.contracts.transport import Transport, TransportPlan
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer


def choose_backend(host: PluginHost, name: str | None) -> Offer[BackendSpec]:
    """Return the backend of that name, or without one the best that this machine can run.

    Raises:
        ParallaxError: if there is none, or this machine cannot run it; the message says why.
    """
    registry = host.backends()
    if name is not None:
        offer = registry.get(name)
        availability = probe(offer)
        if not availability.ok:
            message = f"backend {name!r} cannot run here: {availability.reason}"
            raise ParallaxError(message, "`parallax doctor` says more")
        return offer
    names = sorted(registry.names(), key=lambda each: registry.get(each).spec.rank, reverse=True)
    for offer in map(registry.get, names):
        if probe(offer).ok:
            return offer
    message = "no installed backend can run on this machine"
    raise ParallaxError(message, "install one, such as parallax-backend-mlx; `parallax doctor` says what is missing")


def probe(offer: Offer[BackendSpec]) -> Availability:
    """Ask a backend whether this machine can run it; a probe that cannot be loaded is a no."""
    try:
        return offer.load(offer.spec.probe)()
    except ParallaxError as error:
        return Availability(ok=False, reason=error.message)


def choose_transport(host: PluginHost, name: str = "inprocess") -> Callable[[TransportPlan], Transport]:
    """Return what makes the transports of that name.

    Raises:
        UnknownName: if nobody offers it; the hint says what there is.
        PluginConflict: if several plugins do.
        BrokenPlugin: if it cannot be imported.
    """
    offer = host.transports().get(name)
    return offer.load(offer.spec.factory)
