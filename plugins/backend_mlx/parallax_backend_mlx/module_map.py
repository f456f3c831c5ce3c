"""Finds the layers of a model of mlx-lm, and its other modules with weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from parallax_backend_mlx.runtime import Module, flatten_tree
from parallax_core.api import Unsupported

Holder = list[Any] | dict[Any, Any]


@dataclass(frozen=True, slots=True)
class ModulePath:
    """The position of a module: in another module, or in a list or dictionary of one."""

    holder: Any
    key: Any
    path: str
    """The path, as in the names of its parameters."""

    @property
    def module(self) -> Module:
        """The module at this position."""
        module: Module = self.holder[self.key]
        return module

    def put(self, module: Module) -> None:
        """Put ``module`` at this position."""
        self.holder[self.key] = module


@dataclass(frozen=True, slots=True)
class ModuleMap:
    """The modules of a model: its layers in order, and the modules with weights that neither are nor contain layers."""

    layers: tuple[ModulePath, ...]
    others: tuple[ModulePath, ...]


def draw_module_map(model: Module) -> ModuleMap:
    """Find the modules of ``model``.

    Raises:
        Unsupported: if its layers are not kept in one list.
    """
    path, layers = _find_layers(model)
    places = tuple(ModulePath(layers, index, f"{path}.{index}") for index in range(len(layers)))
    return ModuleMap(places, tuple(_list_others(model, "", layers, path)))


def name_kind(entry: object) -> str:
    """Return the key of entries of one kind, which have the same length and mask after the same tokens."""
    parts = [name_kind(inner) for inner in getattr(entry, "caches", ())]
    sizes = [str(getattr(entry, name)) for name in ("max_size", "keep", "chunk_size") if hasattr(entry, name)]
    return " ".join([type(entry).__name__, *sizes, *parts])


def _find_layers(model: Module) -> tuple[str, list[Any]]:
    """Return the list that holds the layers, and its path: ``model.layers`` may be a slice of it."""
    wanted = getattr(model, "layers", None)
    for path, module in model.named_modules():  # type: ignore[no-untyped-call]
        for key, value in module.items():
            if isinstance(value, list) and value and isinstance(wanted, list) and _is_equal(value, wanted):
                return f"{path}.{key}".lstrip("."), value
    message = "the layers of this model are not in one list"
    raise Unsupported(message, "serve it whole, or try another backend")


def _is_equal(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(one is other for one, other in zip(left, right, strict=True))


def _list_others(holder: Module | Holder, prefix: str, layers: list[Any], path: str) -> Iterator[ModulePath]:
    items = enumerate(holder) if isinstance(holder, list) else holder.items()
    for key, value in list(items):
        name = f"{prefix}{key}"
        if value is layers or str(key).startswith("_"):
            continue
        is_above = path.startswith(f"{name}.")
        if isinstance(value, Module) and not is_above:
            if flatten_tree(value.parameters()):  # type: ignore[no-untyped-call]
                yield ModulePath(holder, key, name)
        elif isinstance(value, Module | list | dict):
            yield from _list_others(value, f"{name}.", layers, path)
