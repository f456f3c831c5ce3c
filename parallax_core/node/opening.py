"""Opens a stage with what is installed here."""

from __future__ import annotations

import dataclasses

from parallax_core.contracts.backend import BackendSpec, StagePlan
from parallax_core.contracts.stage import Stage
from parallax_core.loading.checkpoint import read_config
from parallax_core.node.family import find_blocks
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer


def open_stage(host: PluginHost, offer: Offer[BackendSpec], plan: StagePlan) -> Stage:
    """Load the layers of ``plan`` with a backend, and with the blocks that the model's family brings for it.

    Raises:
        ParallaxError: if that cannot be.
    """
    blocks = find_blocks(host, read_config(plan.model), offer.spec.name)
    return offer.load(offer.spec.factory)().open_stage(dataclasses.replace(plan, blocks=blocks))
