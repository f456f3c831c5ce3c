"""Opens stages over loaded layers: one with everything, or leases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from parallax_backend_torch.capabilities import ADAPTERS, STAGE_CAPABILITIES
from parallax_backend_torch.devices import describe_device
from parallax_backend_torch.graph_replay import make_replays
from parallax_backend_torch.kernels.draw import draw_rows
from parallax_backend_torch.layer_factory import LayerFactory
from parallax_backend_torch.model import Shape
from parallax_backend_torch.network import Runner
from parallax_backend_torch.settings import TorchSettings
from parallax_backend_torch.stage import StageParts, TorchStage
from parallax_backend_torch.store import CacheSpec, Store, list_sizes
from parallax_backend_torch.tensor_file import Selection, TensorSizes
from parallax_core.api import (
    LayerRange,
    Machine,
    StageInfo,
    StagePlan,
    TensorSpec,
    check_cuts,
    describe_ends,
    identify_weights,
)
from parallax_sampling_torch.sampler import Sampler
from parallax_sampling_torch.tensors import name_dtype
from parallax_stage_tools.pools import Room, plan_pools

CORE_FLOPS = 4e10
"""Approximate operations per second of a CPU core."""
FEWEST, MOST, ON_GPU = 16, 512, 4096
"""Tokens of a step: the least and the most on a CPU, and the number on a GPU."""
SATURATION_ROWS = {"cpu": 64}
"""Decodes in a step beyond which throughput does not grow: measured on a CPU, a token costs the same from 64 on."""
SATURATION_ON_GPU = 256
"""The same on a GPU, where throughput grows further; the most rows of a recorded step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedLayers:
    """Loaded layers without sequences: stages of all or some of them share their weights."""

    plan: StagePlan
    shape: Shape
    selection: Selection
    factory: LayerFactory
    sizes: TensorSizes
    runner: Runner
    kept: Sequence[CacheSpec]
    """The cache of each layer."""
    parts: Mapping[str, str]
    """See `StageInfo.weights_parts`."""
    room_bytes: float
    """The memory for KV pages, in bytes."""

    def open_whole(self) -> TorchStage:
        """Return a stage of all layers, with the whole memory for pages."""
        return self.open_part(self.selection.layers, 1.0)

    def open_part(self, layers: LayerRange, memory_share: float) -> TorchStage:
        """Return a stage of some layers, with a share of the memory for pages.

        Raises:
            ParallaxError: if not one page of each pool fits.
            Unsupported: if the model cannot be cut where the layers begin or end.
        """
        if self.plan.shape is not None:
            check_cuts(self.plan.shape, layers)
        info, device = self.describe(layers, memory_share), self.factory.device
        runner = self.runner if layers == self.selection.layers else self.runner.cut(self._select(layers))
        store = Store(self._list_kept(layers), info.pools, device, layers.start)
        replays = make_replays(runner, store, info.pools, TorchSettings(**self.plan.options).graphs)
        sampler = Sampler(self.shape.vocab_size, device, draw_rows)
        return TorchStage(info, StageParts(runner, store, self.factory, sampler, replays))

    def describe(self, layers: LayerRange, memory_share: float) -> StageInfo:
        """Return the properties of the stage that `open_part` returns.

        Raises:
            ParallaxError: if not one page of each pool fits.
        """
        selection, shape, plan = self._select(layers), self.shape, self.plan
        loaded = self.sizes.measure(selection)
        chunk = plan.max_batch_tokens or choose_batch(self.factory, loaded.numbers)
        room = Room(self.room_bytes * memory_share, shape.context_length, chunk, plan.max_running)
        takes, gives = self._describe_ends(layers)
        identity = identify_weights(plan, layers, shape.num_layers, self.parts)
        return StageInfo(
            layers=layers,
            num_layers=shape.num_layers,
            vocab_size=shape.vocab_size,
            context_length=shape.context_length,
            max_batch_tokens=chunk,
            pools=plan_pools(list_sizes(self._list_kept(layers)), room),
            device=describe_device(self.factory, loaded.forms),
            dtype=name_dtype(self.factory.dtype),
            weight_bytes=loaded.num_bytes,
            weights_version=identity.version,
            weights_parts=identity.parts,
            capabilities=STAGE_CAPABILITIES if self.factory.adapters is None else STAGE_CAPABILITIES | ADAPTERS,
            takes=takes,
            gives=gives,
            saturation_rows=SATURATION_ROWS.get(self.factory.device.type, SATURATION_ON_GPU),
        )

    def _describe_ends(self, layers: LayerRange) -> tuple[tuple[TensorSpec, ...], ...]:
        """Return what a stage of these layers takes and gives; without an adapter, ``hidden`` alone."""
        dtype, shape = name_dtype(self.factory.dtype), self.shape
        if self.plan.shape is not None:
            return describe_ends(self.plan.shape, layers, dtype)
        hop = (TensorSpec(shape.hidden_size, dtype),)
        return hop if layers.start else (), hop if layers.stop < shape.num_layers else ()

    def _select(self, layers: LayerRange) -> Selection:
        return replace(self.selection, layers=layers)

    def _list_kept(self, layers: LayerRange) -> Sequence[CacheSpec]:
        first = self.selection.layers.start
        return self.kept[layers.start - first : layers.stop - first]


def choose_batch(factory: LayerFactory, numbers: int) -> int:
    """Return the number of tokens in a step of about a second, for layers with ``numbers`` parameters."""
    if factory.device.type != "cpu":
        return ON_GPU
    return max(FEWEST, min(MOST, int(Machine().count_cores() * CORE_FLOPS / max(2 * numbers, 1))))
