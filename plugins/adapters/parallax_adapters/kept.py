"""The LoRA adapters that a stage keeps in memory: a library for backends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from parallax_adapters.copies import LAYERS
from parallax_adapters.joined import fit_modules
from parallax_adapters.peft_experts import EXPERTS
from parallax_adapters.peft_files import LowRank
from parallax_adapters.room import KeptRoom
from parallax_adapters.store import AdapterStore
from parallax_core.api import BackendFailed, LayerRange, Machine, ParallaxError, SeqId, Unsupported, format_bytes

T = TypeVar("T")

MOST_KEPT = 64
"""Adapters that a stage keeps in memory, unless more are in use; a server loads fewer by default."""


MOST_PREPARED = 4
"""Adapters that are converted ahead."""


class KeptAdapters(Generic[T]):
    """The adapters of loaded layers, which all stages of these layers share; belongs to their thread.

    Args:
        convert: returns what a backend keeps of an adapter, given its matrices by module.
        layers: the layers; what an adapter changes in them and `sizes` does not have, is refused.
        any_thread: whether ``convert`` may run in any thread, while the stages compute in theirs.
        item_bytes: of a number, as it is kept.
        find_free: returns the bytes that are free where they are kept, None if that is not known; None: main memory.
    """

    def __init__(
        self,
        convert: Callable[[Mapping[str, LowRank]], T],
        layers: LayerRange,
        *,
        any_thread: bool = False,
        item_bytes: int = 4,
        find_free: Callable[[], int | None] | None = None,
    ) -> None:
        self._convert, self.layers, self._any_thread = convert, layers, any_thread
        self._item_bytes, self._find_free = item_bytes, find_free or Machine().free_memory
        self._prepared: deque[tuple[str, T]] = deque(maxlen=MOST_PREPARED)
        self.sizes: dict[str, tuple[int, int]] = {}
        """The inputs and outputs of each module that takes adapters, by its name; see `peft_experts.spell_module`."""
        self.list_users: list[Callable[[], Iterable[str]]] = []
        """For each stage, returns the keys of the adapters of its sequences."""
        self.loaded: dict[str, T] = {}
        """By key, the least recently opened first."""
        self._faults: dict[str, str] = {}
        """By key, why an adapter could not be loaded."""
        LAYERS.add(self)  # before they serve, the adapters that are loaded come

    @property
    def room(self) -> KeptRoom:
        """The memory to keep for adapters."""
        return LAYERS.find_room()

    @property
    def sides(self) -> int:
        """The inputs and outputs of all modules that take adapters but experts, together: room is kept for these."""
        return sum(sum(sides) for name, sides in self.sizes.items() if EXPERTS not in name)

    def prepare(self, key: str) -> None:
        """Convert an adapter ahead, so that `load` takes no time; it tells what is wrong with the adapter.

        Call it in another thread than that of the layers, and once their stages are open.
        """
        is_known = key in self.loaded or any(key == each for each, _ in list(self._prepared))
        if self._any_thread and self.list_users and not is_known:
            with suppress(Exception):
                self._prepared.append((key, self._convert(self._read(key))))

    def load(self, key: str) -> bool:
        """Load an adapter unless it is loaded, and drop others; a failure is kept for `check`.

        Returns:
            Whether `loaded` may have changed.
        """
        found = self.loaded.pop(key, None)
        try:
            self.loaded[key] = self._take_prepared(key) or self._convert(self._read(key)) if found is None else found
            self._faults.pop(key, None)
        except ParallaxError as error:
            self._faults[key] = error.message
        except Exception as error:  # noqa: BLE001 -- whatever it is, only the requests for this adapter may end
            self._faults[key] = f"{type(error).__name__}: {error}"
        if found is None:
            self._drop(key)
        return found is None

    def check(self, rows: Sequence[tuple[SeqId, str]]) -> None:
        """Check that the adapters of rows are loaded.

        Args:
            rows: for each, its sequence, and the key of its adapter or an empty text.

        Raises:
            BackendFailed: if one could not be loaded; it names the sequences that need it.
        """
        for key in {key for _, key in rows if key not in self.loaded and key}:
            reason = self._faults.get(key, "it is not loaded")
            at_fault = [seq for seq, other in rows if other == key]
            raise BackendFailed(f"the adapter {key} cannot be used: {reason}", "load it again", at_fault)

    def _take_prepared(self, key: str) -> T | None:
        found = next((each for each in list(self._prepared) if each[0] == key), None)
        if found is not None:
            with suppress(ValueError):  # another one took its place just now
                self._prepared.remove(found)
        return None if found is None else found[1]

    def _read(self, key: str) -> Mapping[str, LowRank]:
        """Return the matrices of an adapter that belong to these layers, checked against theirs."""
        store = AdapterStore()
        if not store.has(key, self.layers):
            LAYERS.fetch(key)
        modules = fit_modules(store.open(key, self.layers).modules, self.sizes)
        for name, matrices in modules.items():
            if name not in self.sizes:
                raise Unsupported(f"it changes {name}, which takes no adapters in this model on this backend")
            inputs, outputs = self.sizes[name]
            shapes = (matrices.a.shape[1], matrices.b.shape[0])
            if shapes != (inputs, outputs):
                raise Unsupported(f"{name} has {inputs} inputs and {outputs} outputs in this model, and {shapes} in it")
        needed = sum(each.rank * sum(self.sizes[name]) for name, each in modules.items()) * self._item_bytes
        if (free := self._find_free()) is not None and needed > free:
            raise Unsupported(f"it takes {format_bytes(needed)} of memory, and {format_bytes(free)} are free")
        return modules

    def _drop(self, newest: str) -> None:
        """Drop adapters without a sequence: those whose files are gone, and the least recently opened of too many."""
        used = {newest}.union(*(list_keys() for list_keys in self.list_users))
        free, store = [key for key in self.loaded if key not in used], AdapterStore()
        gone = [key for key in free if not store.has(key, self.layers)]
        old = [key for key in free if key not in gone][: max(0, len(self.loaded) - len(gone) - MOST_KEPT)]
        for key in (*gone, *old):
            del self.loaded[key]
        self._faults = {key: reason for key, reason in self._faults.items() if key in used}
