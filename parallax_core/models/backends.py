"""Finds the backends that can run on this machine, and chooses a backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from parallax_core.base.errors import ParallaxError
from parallax_core.contracts.backend import Availability, BackendSpec, Opens
from parallax_core.models.adapters import find_spec
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.limit import TimedCall
from parallax_core.plugins.output import divert_output
from parallax_core.plugins.registry import Offer
from parallax_core.plugins.remedy import describe_error

PROBE_S = 5.0
"""Seconds a backend's probe may take."""


def find_backends(host: PluginHost, name: str | None, opens: Opens | None = None) -> list[Offer[BackendSpec]]:
    """Return the backend called ``name``; without a name, all that this machine can run, the highest rank first.

    ``opens`` leaves out backends that do not open what it names; None: none is left out.

    Raises:
        PluginConflict: if several plugins offer that name, or the name of the best backend. Other backends whose names
            conflict are left out.
        ParallaxError: if there is no such backend, or this machine cannot run it; the message says why.
    """
    registry = host.backends()
    if name is not None:
        offer = registry.get(name)
        availability = probe(offer)
        if not availability.ok:
            message = f"backend {name!r} cannot run here: {availability.reason}"
            raise ParallaxError(message, "`parallax doctor` says more")
        return [offer]
    suitable = [offer for offer in registry.offers if opens is None or opens in offer.spec.opens]
    ranked = sorted(suitable, key=lambda offer: offer.spec.rank, reverse=True)
    if not (found := [offer for offer in ranked if probe(offer).ok]):
        hint = "install one: `pip install parallax-backend-mlx`; `parallax doctor` says what is missing"
        raise ParallaxError("no installed backend can run on this machine", hint)
    conflicts = registry.conflicts()
    if conflict := conflicts.get(found[0].spec.name):
        raise conflict
    return [offer for offer in found if offer.spec.name not in conflicts]


def choose_backend(
    host: PluginHost, offers: Sequence[Offer[BackendSpec]], model_config: Mapping[str, Any]
) -> Offer[BackendSpec]:
    """Return the backend of ``offers`` that a plugin selects for a model, else the first.

    Raises:
        PluginConflict: if several plugins claim the model's architecture.
    """
    family, names = find_spec(host, model_config), [offer.spec.name for offer in offers]
    name = host.select_backend(model_config, names, [name for name in names if family and name in family.blocks])
    return next((offer for offer in offers if offer.spec.name == name), offers[0])


def probe(offer: Offer[BackendSpec], limit_s: float = PROBE_S) -> Availability:
    """Return whether this machine can run a backend; not if its probe cannot be loaded, raises or hangs."""
    try:
        with divert_output():
            return TimedCall(partial(_ask, offer)).wait(limit_s)
    except ParallaxError as error:
        reason = error.message
    except TimeoutError:
        reason = f"the probe of {offer.plugin.origin} did not end within {limit_s:g} s"
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- a plugin may raise anything, and must not harm the others
        reason = f"the probe of {offer.plugin.origin} failed: {describe_error(error)}"
    return Availability(ok=False, reason=reason)


def _ask(offer: Offer[BackendSpec]) -> Availability:
    answer: object = offer.load(offer.spec.probe)()
    if not isinstance(answer, Availability):
        raise TypeError(f"its probe returned {answer!r}")
    return answer
