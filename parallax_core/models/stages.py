"""Opens a stage with an installed backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from parallax_core.backendkit.plan import refuse_leases
from parallax_core.base.byte_size import format_bytes
from parallax_core.base.errors import ParallaxError
from parallax_core.checkpoint.reader import find_missing, read_config
from parallax_core.contracts.backend import BackendSpec, LoadedSize, ModelChecker, StagePlan
from parallax_core.contracts.border import check_cuts
from parallax_core.contracts.stage import Stage
from parallax_core.models.adapters import find_blocks, find_family, find_shape
from parallax_core.models.backends import choose_backend
from parallax_core.models.stage_tensors import check_present, choose_tensors, find_part
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer


def open_stage(host: PluginHost, offer: Offer[BackendSpec], plan: StagePlan) -> Stage:
    """Load the layers of ``plan`` with a backend, its options, and the adapter's blocks for it.

    Options that ``plan`` has already override the configured ones.

    Raises:
        Unsupported: if ``plan`` is leased and the backend cannot do that, or the model cannot be cut at its layers.
        ParallaxError: if the layers cannot be loaded.
    """
    config = read_config(plan.model)
    missing = find_missing(plan.model)
    if missing and (tensors := choose_tensors(host, config, plan.layers)):
        check_present(plan.model, tensors, missing)
    stage = offer.load(offer.spec.factory)().open_stage(complete_plan(host, offer, plan, config))
    if plan.leased and "leases" not in stage.info.capabilities:
        stage.close()
        refuse_leases(plan, offer.spec.name)
    return stage


def check_model(host: PluginHost, offer: Offer[BackendSpec], plan: StagePlan) -> bool:
    """Check by config.json whether a backend runs the layers of ``plan``; False: this backend cannot tell.

    Raises:
        ParallaxError: if it does not run them; the message says why.
    """
    if offer.spec.check is not None:
        return offer.load(offer.spec.check)(complete_plan(host, offer, plan, read_config(plan.model)))
    backend: object = offer.load(offer.spec.factory)()
    if not isinstance(backend, ModelChecker):
        return False
    backend.check_model(complete_plan(host, offer, plan, read_config(plan.model)))
    return True


def measure_loaded(host: PluginHost, offer: Offer[BackendSpec], plan: StagePlan) -> LoadedSize | None:
    """Return what a model takes as a backend loads it; None: the backend or the model's adapter does not tell."""
    config = read_config(plan.model)
    family, shape = find_family(host, config), find_shape(host, config)
    if offer.spec.size is None or family is None or shape is None:
        return None
    completed = dataclasses.replace(plan, shape=shape, options={**host.read_options(offer), **plan.options})
    return offer.load(offer.spec.size)(completed, partial(find_part, family.adapter))


@dataclasses.dataclass(frozen=True, slots=True)
class RoomCheck:
    """Refuses a model before its weights are fetched, if the layers of a plan do not fit."""

    host: PluginHost
    offers: Sequence[Offer[BackendSpec]]
    plan: StagePlan
    free: int
    """The bytes that are free for weights; 0: unknown."""

    def __call__(self, folder: Path) -> None:
        """Check the model in a folder; raises ParallaxError with the forms in which it would fit."""
        if not self.free or not self.offers:
            return
        offer = choose_backend(self.host, self.offers, read_config(folder))
        size = measure_loaded(self.host, offer, dataclasses.replace(self.plan, model=folder))
        if size is None or (needed := size.weigh(self.plan.layers)) <= self.free:
            return
        kept = sum(size.adapters[layers.start : layers.stop] if (layers := self.plan.layers) else size.adapters)
        weights, whole = needed - kept, size.weigh() - sum(size.adapters)
        others = ((name, total * weights // whole + kept) for name, total in size.others.items())
        fitting = [f"{name} needs {format_bytes(total)}" for name, total in others if total <= self.free]
        part = f", {format_bytes(kept)} of it for adapters" if kept else ""
        needs = f"the model needs {format_bytes(needed)} as {offer.spec.name} loads it{part}, and"
        raise ParallaxError(
            f"{needs} {format_bytes(self.free)} are free", "; ".join(fitting) or "choose a smaller model"
        )


def complete_plan(host: PluginHost, offer: Offer[BackendSpec], plan: StagePlan, config: Mapping[str, Any]) -> StagePlan:
    """Return ``plan`` with the backend's options, and the adapter's shape and blocks for the model of ``config``.

    Raises:
        Unsupported: if the model cannot be cut at the ends of its layers.
    """
    shape = find_shape(host, config)
    if shape is not None and plan.layers is not None:
        check_cuts(shape, plan.layers)
    blocks, options = find_blocks(host, config, offer.spec.name), {**host.read_options(offer), **plan.options}
    return dataclasses.replace(plan, blocks=blocks, shape=shape, options=options)
