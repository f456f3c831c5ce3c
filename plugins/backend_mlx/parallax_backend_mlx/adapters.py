"""LoRA adapters (arXiv 2106.09685) on MLX: those of several rows in one product."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from parallax_adapters.joined import TURNS as BY_TURNS
from parallax_adapters.kept import KeptAdapters
from parallax_adapters.peft_experts import EXPERTS, spell_module
from parallax_adapters.peft_files import MODULE, LowRank
from parallax_backend_mlx.adapter_stacks import ALL, AdapterStacks, ModuleShape, PlacedAdapter
from parallax_backend_mlx.memory import find_room
from parallax_backend_mlx.panel_weights import PanelLinear
from parallax_backend_mlx.runtime import (
    Linear,
    Module,
    QuantizedLinear,
    QuantizedSwitchLinear,
    SwitchGLU,
    SwitchLinear,
    mx,
)
from parallax_backend_mlx.sizes import weigh_room
from parallax_core.api import BackendFailed, LayerRange, Row, SeqId

NAMES = frozenset(f"{name}_proj" for name in ("q", "k", "v", "qkv", "o", "gate", "up", "gate_up", "down"))
"""The modules that take adapters: those whose outputs mlx-lm has in the order of the checkpoint."""
OTHER_ORDER = frozenset({"llama4", "llama4_text"})
"""Types of models whose stacks of experts transformers has in another order; their experts take no adapters."""

TURNS: Mapping[str, Mapping[str, str]] = {"gpt_oss": dict(zip(("gate_proj", "up_proj"), BY_TURNS, strict=True))}
"""By type, other names of experts' matrices: the stack of transformers has the outputs of both by turns."""


class AdaptedLinear(Module):
    """A linear layer to whose products adapters are added.

    Args:
        base: the layer.
        name: its name from its layer on.
        table: the adapters.
    """

    def __init__(self, base: Module, name: str, table: AdapterTable) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.base, self._name, self._table = base, name, table

    def __call__(self, x: mx.array) -> mx.array:
        """Return the product, shape [..., outputs]."""
        out: mx.array = self.base(x)
        places = self._table.places
        return out if places is None else self._table.add(self._name, places, x, out)


class AdaptedExperts(Module):
    """The experts of a layer; the table gets to know the tokens of each.

    Args:
        base: the experts.
        table: the adapters.
    """

    def __init__(self, base: Module, table: AdapterTable) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.base, self._table = base, table

    def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
        """Return the outputs of the chosen experts of each token, shape [..., chosen, outputs]."""
        with self._table.choosing(indices):
            found: mx.array = self.base(x, indices)
        return found


class AdaptedSwitch(Module):
    """A matrix of each expert, to whose products adapters are added.

    Args:
        base: the matrices.
        name: theirs, see `AdapterStacks.shapes`.
        table: the adapters.
    """

    def __init__(self, base: Module, name: str, table: AdapterTable) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.base, self._name, self._table = base, name, table

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:  # noqa: FBT001, FBT002 -- as mlx-lm has it
        """Return the products of chosen experts, shape [..., chosen, 1, outputs], or [tokens * chosen, 1, outputs]."""
        out: mx.array = self.base(x, indices, sorted_indices=sorted_indices)
        if self._table.places is None:
            return out
        return self._table.add_chosen(self._name, (indices, sorted_indices), x, out)


class AdapterTable:
    """The modules of a network that take adapters, and the adapters; all stages of the network share them.

    Args:
        model: a loaded model, whose modules are replaced.
        layers: its layers.
        dtype: of its activations.
    """

    def __init__(self, model: Module, layers: LayerRange, dtype: mx.Dtype) -> None:
        self._dtype = dtype if mx.default_device() == mx.Device(mx.gpu) else mx.float32
        """Of the matrices; on a CPU, MLX gathers those of float32 alone."""
        self._stacks = AdapterStacks(self._dtype)
        self.kept = KeptAdapters(
            self._convert, layers, any_thread=True, item_bytes=self._dtype.size, find_free=find_room
        )
        self.places: mx.array | None = None
        """The place in the stacks of the adapter of each row that is computed now; None: no row has one."""
        self._chosen: mx.array | None = None
        """The experts that are chosen for the tokens of a layer that is computed now."""
        self._keys: dict[SeqId, str] = {}
        """The keys of the adapters of the step's sequences."""
        kind = getattr(model, "model_type", "")
        for path, module in model.named_modules():  # type: ignore[no-untyped-call]
            for name, child in list(module.items()):
                found = MODULE.fullmatch(f"{path}.{name}")
                if found and name in NAMES and (sizes := _find_sizes(child)):
                    self.kept.sizes[called := spell_module(found[1])] = sizes
                    self._stacks.shapes[called] = ModuleShape(*sizes)
                    setattr(module, name, AdaptedLinear(child, called, self))
                elif found and kind not in OTHER_ORDER and isinstance(child, SwitchGLU):
                    self._wrap_experts(found[1], child, TURNS.get(kind, {}))
                    setattr(module, name, AdaptedExperts(child, self))

    def take_room(self, free: float) -> float:
        """Return what is left of free memory beside that kept for adapters; raises ParallaxError if too little is."""
        room = self.kept.room
        return room.take(free, weigh_room(room, self._dtype.size) * self.kept.sides)

    def load(self, key: str) -> None:
        """Load an adapter unless it is loaded; see `KeptAdapters.load`."""
        self.kept.load(key)

    def begin(self, keys: Mapping[SeqId, str]) -> None:
        """Prepare a step of some sequences, each with the key of its adapter or an empty text.

        Raises:
            BackendFailed: if one could not be loaded; it names the sequences that need it.
        """
        self.kept.check(list(keys.items()))
        self._keys = dict(keys)

    @contextmanager
    def adding(self, rows: Sequence[Row]) -> Iterator[None]:
        """Add the adapters of some rows of the step, which are the first axis of all activations in the context."""
        keys = [self._keys.get(row.seq, "") for row in rows]
        places = [self.kept.loaded[key].place if key else 0 for key in keys]
        self.places = mx.array(places, dtype=mx.uint32) if any(places) else None
        try:
            yield
        finally:
            self.places = None

    @contextmanager
    def choosing(self, chosen: mx.array) -> Iterator[None]:
        """Know the experts of the tokens of a layer, [..., chosen], within the context."""
        self._chosen = chosen
        try:
            yield
        finally:
            self._chosen = None

    def add(self, name: str, places: mx.array, x: mx.array, out: mx.array) -> mx.array:
        """Return the product of a module, [rows, columns, outputs], with what adapters make of its input.

        Raises:
            BackendFailed: if the module does not work on the rows.
        """
        if name not in self._stacks.by_module:
            return out
        if x.ndim != out.ndim or x.shape[:-2] != places.shape:
            raise BackendFailed(f"{name} takes no adapters: it works on other rows than the step has")
        return self._multiply(name, places, x, out)

    def add_chosen(self, name: str, given: tuple[mx.array, bool], x: mx.array, out: mx.array) -> mx.array:
        """Return the products of chosen experts with what adapters make of their inputs.

        Args:
            name: of the matrices.
            given: the experts that mlx-lm computes with, and whether it has sorted the tokens by them.
            x: their inputs.
            out: their products.

        Raises:
            BackendFailed: if the experts do not work on the rows of the step.
        """
        if name not in self._stacks.by_module:
            return out
        (experts, is_sorted), chosen, places = given, self._chosen, self.places
        if chosen is None or places is None or (chosen.size // chosen.shape[-1]) % places.size:
            raise BackendFailed(f"{name} takes no adapters: it works on other rows than the step has")
        per_token = mx.repeat(places, chosen.size // chosen.shape[-1] // places.size)
        if is_sorted:
            per_token = per_token[mx.argsort(chosen.flatten()) // chosen.shape[-1]]
        else:
            per_token = per_token.reshape(*chosen.shape[:-1], 1)
        count = self._stacks.shapes[name].experts
        return self._multiply(name, per_token * count + experts.astype(mx.uint32), x, out)

    def _multiply(self, name: str, numbers: mx.array, x: mx.array, out: mx.array) -> mx.array:
        a, b = self._stacks.by_module[name].pair
        small = mx.gather_mm(x.astype(self._dtype), a, rhs_indices=numbers)
        return out + mx.gather_mm(small, b, rhs_indices=numbers).astype(out.dtype)

    def _convert(self, matrices: Mapping[str, LowRank]) -> PlacedAdapter:
        return self._stacks.place(matrices, self.kept.room.slots + 2)

    def _wrap_experts(self, path: str, experts: Module, names: Mapping[str, str]) -> None:
        """Wrap the matrices of the experts of a layer; ``names`` has their names in adapters, where these differ."""
        layer = ".".join(path.split(".")[:2])
        for name, child in list(experts.items()):
            called = names.get(name, name)
            module = f"{layer}{EXPERTS}{ALL}.{called}"
            if name not in NAMES or not isinstance(child, SwitchLinear | QuantizedSwitchLinear):
                continue
            count, sizes = child.num_experts, (child.input_dims, child.output_dims)
            self._stacks.shapes[module] = ModuleShape(*sizes, count)
            self.kept.sizes |= {f"{layer}{EXPERTS}{number}.{called}": sizes for number in range(count)}
            setattr(experts, name, AdaptedSwitch(child, module, self))


def _find_sizes(module: object) -> tuple[int, int] | None:
    """Return the numbers of inputs and outputs of a linear layer; None for another module."""
    if isinstance(module, PanelLinear):
        count, inputs, width = module.panels.shape
        return inputs, count * width
    if isinstance(module, QuantizedLinear):
        return module.scales.shape[1] * module.group_size, module.scales.shape[0]
    if isinstance(module, Linear):
        return module.weight.shape[1], module.weight.shape[0]
    return None
