"""LoRA adapters (arXiv 2106.09685) on MLX: those of several rows in one product."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from parallax_adapters.kept import KeptAdapters
from parallax_adapters.peft_files import MODULE, LowRank
from parallax_backend_mlx.memory import find_room
from parallax_backend_mlx.panel_weights import PanelLinear
from parallax_backend_mlx.runtime import Linear, Module, QuantizedLinear, mx
from parallax_backend_mlx.sizes import weigh_room
from parallax_backend_mlx.tensors import read_tensor
from parallax_core.api import BackendFailed, LayerRange, Row, SeqId

NAMES = frozenset(f"{name}_proj" for name in ("q", "k", "v", "qkv", "o", "gate", "up", "gate_up", "down"))
"""The modules that take adapters: those whose outputs mlx-lm has in the order of the checkpoint."""
SPARE = 2
"""Adapters for which stacks have room beside those in use: one that is loaded is then written there alone."""
Pair = tuple[mx.array, mx.array]
"""The matrices of a module: [inputs, rank], and [rank, outputs] with the scale."""


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
        self.kept = KeptAdapters(
            self._convert, layers, any_thread=True, item_bytes=self._dtype.size, find_free=find_room
        )
        self.places: mx.array | None = None
        """The number in the stacks of the adapter of each row that is computed now; None: no row has one."""
        self._keys: dict[SeqId, str] = {}
        """The keys of the adapters of the step's sequences."""
        self._numbers: dict[str, int] = {"": 0}
        self._spare: list[int] = []
        """The numbers in the stacks that no adapter has."""
        self._stacks: dict[str, Pair] = {}
        """For each module that an adapter changes, the matrices of all in use, [number, ...], with zeros for none."""
        for path, module in model.named_modules():  # type: ignore[no-untyped-call]
            for name, child in list(module.items()):
                found = MODULE.fullmatch(f"{path}.{name}")
                if found and name in NAMES and (sizes := _find_sizes(child)):
                    self.kept.sizes[found[1]] = sizes
                    setattr(module, name, AdaptedLinear(child, found[1], self))

    def take_room(self, free: float) -> float:
        """Return what is left of free memory beside that kept for adapters; raises ParallaxError if too little is."""
        room = self.kept.room
        return room.take(free, weigh_room(room, self._dtype.size) * self.kept.sides)

    def load(self, key: str) -> None:
        """Load an adapter unless it is loaded; see `KeptAdapters.load`."""
        self.kept.load(key)
        for other in [each for each in self._numbers if each and each not in self.kept.loaded]:
            self._spare.append(self._numbers.pop(other))
        if len(self._numbers) == 1:
            self._forget()

    def begin(self, keys: Mapping[SeqId, str]) -> None:
        """Prepare a step of some sequences, each with the key of its adapter or an empty text.

        Raises:
            BackendFailed: if one could not be loaded; it names the sequences that need it.
        """
        self.kept.check(list(keys.items()))
        self._keys = dict(keys)
        if missing := sorted(set(keys.values()) - self._numbers.keys()):
            try:
                self._place(missing)
            except BaseException:  # such as for lack of memory; what is in the stacks is not known
                self._forget()
                raise

    @contextmanager
    def adding(self, rows: Sequence[Row]) -> Iterator[None]:
        """Add the adapters of some rows of the step, which are the first axis of all activations in the context."""
        keys = [self._keys.get(row.seq, "") for row in rows]
        self.places = mx.array([self._numbers[key] for key in keys], dtype=mx.uint32) if any(keys) else None
        try:
            yield
        finally:
            self.places = None

    def add(self, name: str, places: mx.array, x: mx.array, out: mx.array) -> mx.array:
        """Return the product of a module, [rows, columns, outputs], with what adapters make of its input.

        Raises:
            BackendFailed: if the module does not work on the rows.
        """
        if name not in self._stacks:
            return out
        if x.ndim != out.ndim or x.shape[:-2] != places.shape:
            raise BackendFailed(f"{name} takes no adapters: it works on other rows than the step has")
        a, b = self._stacks[name]
        small = mx.gather_mm(x.astype(self._dtype), a, rhs_indices=places)
        return out + mx.gather_mm(small, b, rhs_indices=places).astype(out.dtype)

    def _forget(self) -> None:
        """Give back the memory of the stacks."""
        self._numbers, self._spare, self._stacks = {"": 0}, [], {}

    def _place(self, keys: Sequence[str]) -> None:
        """Put adapters into the stacks, in spare places, or in those of adapters without a sequence."""
        used = {""}.union(keys, *(list_keys() for list_keys in self.kept.list_users))
        idle = [key for key in self._numbers if key not in used]
        self._spare += [self._numbers.pop(key) for key in idle[: max(0, len(keys) - len(self._spare))]]
        if len(keys) <= len(self._spare) and all(map(self._fits, keys)):
            self._write(keys)
            return
        self._stack([key for key in sorted(used) if not key or key in self.kept.loaded])

    def _fits(self, key: str) -> bool:
        """Whether the stacks have room for the matrices of an adapter, if they have a spare number."""
        pairs = self.kept.loaded[key].items()
        return all(name in self._stacks and self._stacks[name][0].shape[2] >= pair[0].shape[1] for name, pair in pairs)

    def _write(self, keys: Sequence[str]) -> None:
        """Write adapters over spare ones, in the memory of the stacks."""
        for key in keys:
            number = self._numbers[key] = self._spare.pop()
            for name, (a, b) in self._stacks.items():
                pair = self.kept.loaded[key].get(name)
                small = None if pair is None else _pad(pair, a.shape[2])
                a[number], b[number] = (0, 0) if small is None else small
        mx.eval(list(self._stacks.values()))

    def _stack(self, keys: Sequence[str]) -> None:
        """Make the stacks of some adapters anew, with room for others."""
        self._numbers = {key: number for number, key in enumerate(keys)}
        self._spare = list(range(len(keys), len(keys) + SPARE))
        loaded = [self.kept.loaded[key] for key in keys if key]
        self._stacks = {}
        for name, (inputs, outputs) in self.kept.sizes.items():
            pairs = [each.get(name) for each in loaded]
            rank = max((pair[0].shape[1] for pair in pairs if pair), default=0)
            if rank:
                empty = (mx.zeros((inputs, rank), self._dtype), mx.zeros((rank, outputs), self._dtype))
                padded = [empty, *(empty if pair is None else _pad(pair, rank) for pair in pairs), *[empty] * SPARE]
                self._stacks[name] = (mx.stack([pair[0] for pair in padded]), mx.stack([pair[1] for pair in padded]))
        mx.eval(list(self._stacks.values()))

    def _convert(self, matrices: Mapping[str, LowRank]) -> dict[str, Pair]:
        made = {}
        for name, each in matrices.items():
            a, b = (read_tensor(part).astype(mx.float32).T for part in (each.a, each.b))
            made[name] = (a.astype(self._dtype), (b * each.scale).astype(self._dtype))
        mx.eval(list(made.values()))
        return made


def _pad(pair: Pair, rank: int) -> Pair:
    spare = rank - pair[0].shape[1]
    return mx.pad(pair[0], [(0, 0), (0, spare)]), mx.pad(pair[1], [(0, spare), (0, 0)])


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
