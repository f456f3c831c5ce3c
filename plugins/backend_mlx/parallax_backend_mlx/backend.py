"""Opens stages on MLX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from parallax_backend_mlx.checkpoint import read_checkpoint, read_json
from parallax_backend_mlx.loading import load_network
from parallax_backend_mlx.memory import find_room, format_bytes
from parallax_backend_mlx.network import PAGE_TOKENS, Network
from parallax_backend_mlx.runtime import BLAS, mx
from parallax_backend_mlx.stage import MlxStage
from parallax_backend_mlx.window import limit_context
from parallax_core.api import LayerRange, ParallaxError, PoolInfo, StageInfo, StagePlan, Unsupported

LENGTHS = ("max_position_embeddings", "max_sequence_length", "max_seq_len", "n_positions", "n_ctx", "seq_length")
"""How config.json may call the longest sequence a model was made for."""
COUNTS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
"""How it may call the number of layers."""
MAX_SEQUENCES = 256
"""Memory for more full-length sequences than this is left to others."""
BATCH_TOKENS = {"gpu": 2048, "fast": 128, "slow": 16}
"""Tokens in a step of about a second or less: on a GPU, on a CPU with a fast BLAS, on one without."""


class MlxBackend:
    """The backend ``mlx``."""

    def open_stage(self, plan: StagePlan) -> MlxStage:
        """Load the whole model; see `parallax_core.api.Backend.open_stage`."""
        config = read_json(plan.model / "config.json")
        num_layers = _count_layers(config)
        if plan.layers not in (None, LayerRange(0, num_layers)):
            message = f"this backend loads whole models, not layers {plan.layers.start}-{plan.layers.stop}"
            raise Unsupported(message, f"ask for all of them, 0-{num_layers}, or none in particular")
        checkpoint = read_checkpoint(plan.model)
        model, weight_bytes = load_network(plan, checkpoint.tensors)
        network = Network(model)
        network.install_pick()
        pages = _count_pages(network.shape.page_bytes, plan.memory_fraction)
        context_length = limit_context(
            _find_text(config), network.list_slides(), _find_setting(config, LENGTHS) or pages * PAGE_TOKENS
        )
        pages = min(pages, MAX_SEQUENCES * math.ceil(context_length / PAGE_TOKENS))
        info = StageInfo(
            layers=LayerRange(0, num_layers),
            num_layers=num_layers,
            vocab_size=network.shape.vocab_size,
            context_length=context_length,
            max_batch_tokens=_choose_batch(),
            pools=_list_pools(pages, can_rewind=network.can_rewind()),
            device=describe_device(),
            dtype=str(network.shape.dtype).rpartition(".")[2],
            weight_bytes=weight_bytes,
            weights_version=checkpoint.version,
            capabilities=frozenset({"logprobs"}),
        )
        return MlxStage(network, info)


def describe_device() -> str:
    """Return what MLX computes on, in words: ``cpu (OpenBLAS 0.3.34)``."""
    if not _is_gpu():
        return f"cpu ({BLAS.name})"
    kind = "Metal" if mx.metal.is_available() else "CUDA"
    return f"{kind} ({mx.device_info()['device_name']})"


def _is_gpu() -> bool:
    return mx.default_device() == mx.Device(mx.gpu)


def _choose_batch() -> int:
    if _is_gpu():
        return BATCH_TOKENS["gpu"]
    return BATCH_TOKENS["slow" if BLAS.is_slow else "fast"]


def _count_layers(config: dict[str, Any]) -> int:
    count = _find_setting(config, COUNTS)
    if count is None:
        message = "config.json does not say how many layers the model has"
        raise Unsupported(message, "check that it is the config.json of a language model")
    return count


def _find_text(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of ``config`` that speaks of the language model."""
    part = config.get("text_config")
    return part if isinstance(part, dict) else config


def _find_setting(config: dict[str, Any], names: Sequence[str]) -> int | None:
    for part in (_find_text(config), config):
        for name in names:
            if isinstance(part.get(name), int):
                return int(part[name])
    return None


def _list_pools(pages: int, *, can_rewind: bool) -> tuple[PoolInfo, ...]:
    """Return the account of the memory, and for models that cannot go back a second one that says so."""
    memory = PoolInfo(kind="full", page_size=PAGE_TOKENS, num_pages=pages, shares=False)
    return (memory,) if can_rewind else (memory, PoolInfo(kind="state", page_size=1, num_pages=pages))


def _count_pages(page_bytes: int, fraction: float) -> int:
    """Return how many pages fit into ``fraction`` of the memory that is free now."""
    room = find_room()
    pages = int(room * fraction) // page_bytes
    if pages < 1:
        message = f"a page of {PAGE_TOKENS} tokens takes {format_bytes(page_bytes)}, and {format_bytes(room)} are free"
        raise ParallaxError(message, "close other programs, or choose a smaller model")
    return pages
