"""Reads the shape of a model, and the bytes per weight, from its config and index alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallax_core.api import LoadedSize, ModelShape, ParallaxError, Progress, StagePlan, Unsupported, read_config
from parallax_core.api.deployment import (
    Catalog,
    PluginHost,
    choose_backend,
    count_weights,
    find_backends,
    find_family,
    measure_loaded,
)
from parallax_models.check.weight_check import check_weights, read_total

ITEM_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model whose shape an adapter has read."""

    folder: Path
    config: dict[str, Any]
    shape: ModelShape


def read_model(host: PluginHost, model: str, progress: Progress) -> KnownModel:
    """Return the shape of a model, fetching its files without weights if they are not on this machine.

    Args:
        host: offers adapters and sources.
        model: the name as the user writes it; a folder needs no more than its config.json.
        progress: receives progress reports of downloads.

    Raises:
        Unsupported: if no installed plugin knows its architecture, or the adapter counts other parameters than the
            checkpoint has, as far as its index and headers are on this machine.
        ParallaxError: if there is no such model, or it cannot be fetched.
    """
    path = Path(model).expanduser()
    is_folder = (path / "config.json").is_file()
    folder = path if is_folder else Catalog(host).fetch_without_weights(model, progress).path
    config = read_config(folder)
    family = find_family(host, config)
    if family is None:
        named = ", ".join(map(str, config.get("architectures") or ["none"]))
        message = f"no installed plugin knows the architecture of {model} ({named})"
        raise Unsupported(
            message,
            "`parallax plugins` lists the model families; docs/how-to/write-a-model-adapter.md says how to add one;"
            " `parallax cluster plan` plans by size with --params 24B --layers 40",
        )
    shape = family.adapter.read_shape(config)
    check_weights(family, shape, folder)
    return KnownModel(folder, config, shape)


def size_model(plugins: PluginHost, plan: StagePlan, backend: str | None) -> LoadedSize | None:
    """Return what a model takes as a backend loads it; None: no backend tells.

    Args:
        plugins: offers the backends.
        plan: of the whole model.
        backend: its name, whether or not it runs here; None: the best of this machine for the model, if there is one.
    """
    try:
        offer = plugins.backends().get(backend) if backend else None
        offer = offer or choose_backend(plugins, find_backends(plugins, None, "stage"), read_config(plan.model))
    except ParallaxError:  # nodes may have backends that this machine lacks
        return None
    return measure_loaded(plugins, offer, plan)


def measure_weight(model: KnownModel) -> float:
    """Return the mean bytes per weight as stored: from the index, else from the config."""
    if size := read_total(model.folder):
        return size / count_weights(model.shape)
    quantization = model.config.get("quantization") or model.config.get("quantization_config")
    bits = quantization.get("bits") if isinstance(quantization, dict) else None
    if isinstance(bits, int) and bits > 0:
        return bits / 8
    return ITEM_BYTES.get(str(model.config.get("dtype") or model.config.get("torch_dtype")), 2.0)
