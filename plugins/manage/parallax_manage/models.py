"""List, pull and remove models, and change those of a running server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from parallax_core.api import (
    Border,
    ConfigReader,
    ModelShape,
    ParallaxError,
    StagePlan,
    StoredModel,
    UnknownName,
    Unsupported,
    count_border_bytes,
    count_layers,
    format_bytes,
    list_borders,
    read_object,
)
from parallax_core.api.cli import PluginHost, make_display, new_app, print_table
from parallax_core.api.deployment import (
    Catalog,
    count_active,
    count_weights,
    find_backends,
    find_family,
    measure_loaded,
)
from parallax_core.api.installation import (
    ModelTokenizer,
    PluginConflict,
    RequestDefaults,
    describe_layers,
    divert_output,
    extend,
    format_layers,
)
from parallax_core.api.source import find_tokenizer

summary = "List, fetch, describe and remove models, and change those of a running server."
app = new_app(summary, extend("models"))

FOUND = "parallax.found_models"
"""The entry-point group of functions that return `StoredModel` of other programs, by the names of their sources."""
ModelArgument = Annotated[str, typer.Argument(help="A folder, a hub id such as org/name, pypi:NAME, or an alias.")]


@app.command("list")
def list_models() -> None:
    """List the models on this machine, and the aliases you can fetch."""
    host = PluginHost.prepare()
    catalog = Catalog(host)
    models = [
        *((source, model, "all") for source, model in catalog.stored()),
        *((source, model, describe_layers(host, model.path)) for source, model in catalog.stored_partial()),
    ]
    stored = [(f"{source}:{model.name}", _describe_size(model), layers, model.path) for source, model, layers in models]
    print_table(("MODEL", "SIZE", "LAYERS", "FOLDER"), sorted(stored), empty="no models on this machine yet")
    print()
    if found := [row for row in _list_found() if row[0] not in {name for name, *_ in stored}]:
        print_table(("OF ANOTHER PROGRAM", "SIZE", "PLACE"), sorted(found))
        print()
    aliases = [
        (alias, target.partition("#")[0], _presence(catalog, alias)) for alias, target in catalog.aliases().items()
    ]
    print_table(("ALIAS", "STANDS FOR", "STATE"), aliases, empty="no aliases: no installed plugin offers one")


@app.command()
def pull(model: ModelArgument) -> None:
    """Fetch a model, or the missing part of one. Serving it later needs no network."""
    with make_display() as display, divert_output():
        folder = _catalog().fetch(model, display)
    print(folder.path)


@app.command()
def show(model: ModelArgument) -> None:
    """Describe a model that is on this machine, or a part of one."""
    host = PluginHost.prepare()
    catalog = Catalog(host)
    if folder := catalog.find(model):
        size = _megabytes(_size(folder.path))
        print_table(("", ""), _describe(folder.path, folder.ref, size, host), header=False)
    elif (part := catalog.find_partial(model)) and find_tokenizer(path.name for path in part.path.iterdir()):
        rows = _describe(part.path, catalog.qualify(model), _describe_size(part), host)
        print_table(("", ""), [*rows, ("layers here", describe_layers(host, part.path))], header=False)
    else:
        raise _explain_absence(catalog, model)


@app.command()
def rm(model: ModelArgument) -> None:
    """Remove a model, or a part of one, from this machine."""
    freed = _catalog().remove(model)
    print(f"removed {model}, {_megabytes(freed)} freed")


def _list_found() -> Iterator[tuple[str, str, Path]]:
    """Yield the models of other programs that sources use where they lie."""
    for point in entry_points(group=FOUND):
        models: Sequence[StoredModel] = point.load()()
        yield from ((f"{point.name}:{model.name}", _megabytes(model.size_bytes), model.path) for model in models)


def _explain_absence(catalog: Catalog, model: str) -> UnknownName:
    located = catalog.locate(model)
    if not catalog.takes_paths(located):
        return UnknownName(f"{model!r} is not on this machine", f"fetch it with `parallax models pull {model}`")
    path = Path(located.name).expanduser()
    if not path.exists():
        return UnknownName(f"there is no file {path}", "check the path")
    return UnknownName(
        f"{model!r} has not been converted yet", f"`parallax models pull {model}` converts it, and so does serving it"
    )


def _catalog() -> Catalog:
    return Catalog(PluginHost.prepare())


def _presence(catalog: Catalog, alias: str) -> str:
    try:
        if catalog.find(alias):
            return "on this machine"
        return "a part is on this machine" if catalog.find_partial(alias) else "not fetched"
    except PluginConflict:
        return "offered by several plugins"


def _describe(folder: Path, ref: str, size: str, host: PluginHost) -> list[tuple[str, object]]:
    config, text = read_object(folder / "config.json"), ModelTokenizer(folder)
    inner, named = ConfigReader(config).raw, config.get("architectures")
    return [
        ("model", ref.partition("#")[0]),
        ("folder", folder),
        ("size", size),
        ("architecture", ", ".join(map(str, named)) if isinstance(named, list) and named else "not stated"),
        ("layers", count_layers(config) or "not stated"),
        ("hidden size", inner.get("hidden_size", "not stated")),
        ("vocabulary", inner.get("vocab_size", "not stated")),
        ("context", f"{inner.get('max_position_embeddings', 'not stated')} tokens"),
        *_describe_family(host, config),
        *_describe_loaded(host, folder),
        ("stored dtype", config.get("dtype") or inner.get("dtype") or config.get("torch_dtype") or "not stated"),
        ("chat template", "yes" if text.can_chat else "no"),
        ("default sampling", _describe_defaults(text.defaults)),
        ("stop tokens", ", ".join(map(str, sorted(text.stop_ids))) or "none"),
    ]


def _describe_family(host: PluginHost, config: dict[str, Any]) -> list[tuple[str, object]]:
    family = find_family(host, config)
    if family is None:
        return [("family", "none that an installed plugin knows")]
    try:
        shape = family.adapter.read_shape(config)
    except Unsupported as error:
        return [("family", f"{family.name}, but {error.message}")]
    kinds = Counter(layer.kind for layer in shape.layers)
    return [
        ("family", family.name),
        ("kinds of layers", ", ".join(f"{count} {kind}" for kind, count in kinds.items())),
        ("parameters", f"{_millions(count_weights(shape))}, of which a token meets {_millions(count_active(shape))}"),
        ("memory", describe_memory(shape)),
        *describe_borders(list_borders(shape)),
    ]


def _describe_loaded(host: PluginHost, folder: Path) -> list[tuple[str, object]]:
    """Return the memory of the weights as each backend of this machine loads them."""
    try:
        offers = find_backends(host, None, "stage")
        found = {offer.spec.name: measure_loaded(host, offer, StagePlan(model=folder)) for offer in offers}
    except ParallaxError:
        return []
    told = ", ".join(f"{_megabytes(size.weigh())} by {name}" for name, size in found.items() if size)
    return [("loaded", told)] if told else []


def _describe_defaults(defaults: RequestDefaults) -> str:
    stated = ", ".join(f"{name} {value:g}" for name, value in defaults.describe().items())
    return stated or "temperature 1: the model recommends nothing"


def describe_memory(shape: ModelShape) -> str:
    """Return the size of a sequence's KV cache and state, as counts of numbers of any dtype."""
    parts = [
        (sum(layer.long_width or layer.kv_width * (not layer.window) for layer in shape.layers), "numbers per token"),
        (sum(layer.kv_width for layer in shape.layers if layer.kind == "window"), "per token in a window"),
        (sum(layer.state_width for layer in shape.layers), "per sequence"),
    ]
    return ", ".join(f"{count} {what}" for count, what in parts if count)


def describe_borders(borders: Sequence[Border]) -> list[tuple[str, object]]:
    """Return the planes that cross from stage to stage, and the layers that may begin a stage, if not all."""
    legal = [border for border in borders if not border.obstacle]
    if not legal:
        return [("stages", f"one: {borders[0].obstacle}")] if borders else []
    widest = max(legal, key=lambda border: count_border_bytes(border, 4))
    crossing = " + ".join(f"{plane.name} of {' x '.join(map(str, plane.shape))}" for plane in widest.planes)
    limit = " at most" if len({border.planes for border in legal}) > 1 else ""
    size = f"{format_bytes(count_border_bytes(widest, 2))} in 16 bits"
    found: list[tuple[str, object]] = [("between stages", f"{crossing}{limit}, for each token: {size}")]
    if len(legal) < len(borders):
        runs = (run.split("-") for run in format_layers(border.layer for border in legal).split(","))
        cuts = ", ".join(f"{start} to {int(stop) - 1}" if int(stop) - int(start) > 1 else start for start, stop in runs)
        obstacle = next(border.obstacle for border in borders if border.obstacle)
        found.append(("stages begin with", f"layer 0, or {cuts}: {obstacle}"))
    return found


def _millions(count: int) -> str:
    return f"{count / 10**6:.1f} M"


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _describe_size(model: StoredModel) -> str:
    here = model.size_bytes
    return _megabytes(here) if model.total_bytes is None else f"{here / 10**6:.0f} of {_megabytes(model.total_bytes)}"


def _megabytes(size: int) -> str:
    return f"{size / 10**6:.0f} MB"
