"""Opens a stage with an installed backend."""

from __future__ import annotations

import dataclasses

from parallax_core.backendkit.plan import refuse_leases
from parallax_core.checkpoint.reader import find_missing, read_config
from parallax_core.contracts.backend import BackendSpec, StagePlan
from parallax_core.contracts.border import check_cuts
from parallax_core.contracts.stage import Stage
from parallax_core.models.adapters import find_blocks, find_shape
from parallax_core.models.stage_tensors import check_present, choose_tensors
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer


def open_stage(host: PluginHost, offer: Offer[BackendSpec], plan: StagePlan) -> Stage:
    """Load the layers of ``plan`` with a backend, its options, and the adapter's blocks for it.

    Options that ``plan`` has already override the configured ones.

    Raises:
        Unsupported: if ``plan`` is of a stage that serves through leases, and the backend does not open those; or if
            the model cannot be cut where its layers begin or end.
        ParallaxError: if the layers cannot be loaded.
    """
    config = read_config(plan.model)
    missing = find_missing(plan.model)
    if missing and (tensors := choose_tensors(host, config, plan.layers)):
        check_present(plan.model, tensors, missing)
    shape = find_shape(host, config)
    if shape is not None and plan.layers is not None:
        check_cuts(shape, plan.layers)
    blocks = find_blocks(host, config, offer.spec.name)
    options = {**host.read_options(offer), **plan.options}
    plan = dataclasses.replace(plan, blocks=blocks, shape=shape, options=options)
    stage = offer.load(offer.spec.factory)().open_stage(plan)
    if plan.leased and "leases" not in stage.info.capabilities:
        stage.close()
        refuse_leases(plan, offer.spec.name)
    return stage
