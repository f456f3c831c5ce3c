"""The blocks that core brings a backend, for tests that open stages without core."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from parallax_core.api import ParallaxError, StagePlan, read_config
from parallax_core.models.adapters import find_blocks, find_shape
from parallax_core.plugins.host import PluginHost


def bring_blocks(plan: StagePlan, backend: str) -> StagePlan:
    """Return ``plan`` with the shape of its model and the blocks that an installed adapter has for a backend.

    A plan that has blocks stays as it is; so does one of a damaged model, about which the backend has to raise.
    """
    if plan.blocks is not None:
        return plan
    try:
        config = read_config(plan.model)
    except ParallaxError:
        return plan
    host = _prepare_host()
    return replace(plan, blocks=find_blocks(host, config, backend), shape=find_shape(host, config))


@cache
def _prepare_host() -> PluginHost:
    return PluginHost.prepare()
