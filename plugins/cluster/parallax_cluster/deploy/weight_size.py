"""Reads the shape of a model, and the bytes per weight, from its config and index alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from parallax_cluster.placement.demand import measure_demand
from parallax_core.api import (
    DType,
    LoadedSize,
    ModelDemand,
    ModelShape,
    ParallaxError,
    Part,
    Progress,
    Ref,
    StagePlan,
    Unsupported,
    read_config,
    silent,
)
from parallax_core.api.deployment import (
    Catalog,
    ModelFamily,
    PluginHost,
    choose_backend,
    find_backends,
    find_family,
    find_part,
    measure_loaded,
)
from parallax_core.api.source import read_index
from parallax_models.check.weight_check import OTHER, PREDICTION, check_weights, read_total

ITEM_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
SIZES: Ref[Callable[[Path, ModelShape, Callable[[str], Part | None], int], LoadedSize]] = Ref(
    "parallax_formats.sizes:measure_stored"
)
"""Imported when a plan needs it: it reads numbers with NumPy."""
SMALL = ("norm", "bias", "scale")
"""Words in the names of tensors that are small, the smallest first."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model whose shape an adapter has read."""

    folder: Path
    family: ModelFamily
    shape: ModelShape
    has_more: bool
    """Whether its files have tensors that no layer uses, such as heads that predict several tokens."""


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
    counts = check_weights(family, shape, folder)
    return KnownModel(folder, family, shape, has_more=bool(counts.keys() & {PREDICTION, OTHER}))


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


def measure_model(plugins: PluginHost, folder: Path, dtype: DType, backend: str | None = None) -> ModelDemand:
    """Return what the model in a folder takes in ``dtype``, as a backend loads it; None: the best of this machine."""
    known = read_model(plugins, str(folder), silent)
    size = size_model(plugins, StagePlan(model=known.folder, dtype=dtype), backend)
    if size is None and dtype in ITEM_BYTES:
        return measure_demand(known.shape, ITEM_BYTES[dtype])
    return measure_demand(known.shape, size=size or measure_stored(known))


def measure_stored(model: KnownModel) -> LoadedSize:
    """Return what a model takes as it is stored: by its headers if they are here, else by its config and index."""
    total = 0 if model.has_more else read_total(model.folder)
    find = partial(find_part, model.family.adapter)
    return SIZES.load()(model.folder, model.shape, find, total)


def fetch_headers(catalog: Catalog, model: str, folder: Path, progress: Progress) -> None:
    """Fetch the headers of all weight files of a model: of each, a tensor that is small by its name comes with it.

    Does nothing for files that are here, and for a folder of a user. Raises ParallaxError if they cannot be fetched.
    """
    if Path(model).expanduser().is_dir():
        return
    smallest: dict[str, str] = {}
    for name, file in sorted(read_index(folder).items(), key=lambda each: _rank_size(each[0])):
        smallest.setdefault(file, name)
    wanted = {name for file, name in smallest.items() if not (folder / file).exists()}
    if wanted or not any(folder.glob("*.safetensors")):
        catalog.fetch_tensors(model, wanted.__contains__, progress)


def _rank_size(name: str) -> int:
    return next((rank for rank, word in enumerate(SMALL) if word in name), len(SMALL))
