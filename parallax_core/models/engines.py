"""Opens an engine for a whole model with an installed backend."""

from __future__ import annotations

import dataclasses

from parallax_core.base.errors import Unsupported
from parallax_core.checkpoint.reader import find_missing, read_config
from parallax_core.contracts.backend import BackendSpec
from parallax_core.contracts.token_engine import EngineBackend, EnginePlan, TokenEngine
from parallax_core.models.stage_tensors import check_present, choose_tensors
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer


def open_engine(host: PluginHost, offer: Offer[BackendSpec], plan: EnginePlan) -> TokenEngine:
    """Return an engine for the model of ``plan``, not started, with the backend's configured options.

    Raises:
        Unsupported: if the backend opens no engines.
        ParallaxError: if the model is not complete, or the backend refuses it.
    """
    config = read_config(plan.model)
    missing = find_missing(plan.model)
    if missing and (tensors := choose_tensors(host, config, None)):
        check_present(plan.model, tensors, missing)
    backend: object = offer.load(offer.spec.factory)()
    if not isinstance(backend, EngineBackend):
        name = offer.spec.name
        raise Unsupported(f"the backend {name!r} says that it opens engines, and has no open_engine", "update it")
    return backend.open_engine(dataclasses.replace(plan, options={**host.read_options(offer), **plan.options}))
