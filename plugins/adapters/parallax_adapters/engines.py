"""The LoRA adapters of an engine that reads PEFT's format itself: a library for backends."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from parallax_adapters.copies import LAYERS
from parallax_adapters.peft_config import CONFIG
from parallax_adapters.peft_experts import find_stack
from parallax_adapters.peft_files import MODULE, WEIGHTS, write_matrices
from parallax_adapters.store import AdapterStore
from parallax_core.api import InvalidRequest, LayerRange, ParallaxError, Tensor
from parallax_core.api.source import find_locations

PLAIN = frozenset({"F32", "F16", "BF16"})
"""The dtypes of matrices whose shapes are those of their modules."""
MATRIX_AXES = 2
ALL = LayerRange(0, 2**31)


class EngineAdapters:
    """Finds adapters by their keys, and holds them against the model before an engine sees them.

    Engines fail, or compute something else in silence, if an adapter has other sizes than the model.

    Args:
        model: the folder of the model.
        max_rank: the largest rank that the engine takes.
    """

    layers = ALL

    def __init__(self, model: Path, max_rank: int) -> None:
        self._model, self._max_rank = model, max_rank
        self._sizes: dict[str, tuple[int, ...]] = {}
        self._checked: dict[str, Path] = {}

    def open(self) -> None:
        """Read the sizes of the model, and wait for the adapters that are loaded; not on an event loop."""
        for path in self._model.glob("*.safetensors"):
            for each in find_locations(path):
                module = MODULE.fullmatch(each.name.removesuffix(".weight"))
                if module is not None and each.name.endswith(".weight"):
                    self._sizes[module[1]] = tuple(each.shape) if each.kind in PLAIN else ()
        LAYERS.add(self)

    def prepare(self, key: str) -> None:
        """Write the files of an adapter ahead; `find` tells what is wrong with it."""
        with suppress(InvalidRequest):
            self.find(key)

    def find(self, key: str) -> Path:
        """Return the folder of an adapter, with ``adapter_config.json`` and ``adapter_model.safetensors``.

        Raises:
            InvalidRequest: if it is not on this machine, or not for this model; ``param`` is ``adapter``.
        """
        store = AdapterStore()
        if (found := self._checked.get(key)) is None or not store.has(key):
            try:
                self._check(store, key)
                self._checked[key] = found = store.export(key)
            except ParallaxError as error:
                raise InvalidRequest(error.message, "adapter", error.hint) from error
        return found

    def _check(self, store: AdapterStore, key: str) -> None:
        adapter = store.open(key)
        if adapter.rank > self._max_rank:
            message = f"the adapter has the rank {adapter.rank}, and this engine takes at most {self._max_rank}"
            raise ParallaxError(message, "an operator can raise its option max_lora_rank")
        for name, each in adapter.modules.items():
            if find_stack(name):
                raise ParallaxError(f"the adapter changes stacks of experts, {name}, which this engine does not take")
            if (size := self._sizes.get(name)) is None:
                raise ParallaxError(f"the adapter changes {name}, which this model does not have")
            found = (each.b.shape[0], each.a.shape[1])
            if len(size) == MATRIX_AXES and size != found:
                message = f"{name} has {size[1]} inputs and {size[0]} outputs in this model, and {found[::-1]} in it"
                raise ParallaxError(message)

    def write_empty(self, folder: Path) -> Path:
        """Write an adapter that changes nothing, for engines that need one for requests without, and return its folder.

        Raises:
            OSError: if it cannot be written.
        """
        name, (out, into) = next((name, size) for name, size in self._sizes.items() if len(size) == MATRIX_AXES)
        zeros = {"A": Tensor("float32", (1, into), bytes(4 * into)), "B": Tensor("float32", (out, 1), bytes(4 * out))}
        folder.mkdir(parents=True, exist_ok=True)
        full = f"base_model.model.model.{name}.lora_"
        write_matrices(folder / WEIGHTS, [(f"{full}{part}.weight", tensor) for part, tensor in zeros.items()])
        fields = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": [name.rpartition(".")[2]]}
        (folder / CONFIG).write_text(json.dumps(fields))
        return folder
