"""Starts SGLang in this process as one rank of a pipeline with some layers, by private parts.

SGLang asks its pipeline group for the layers that a process holds: its models, its loader and its KV cache follow from
the answer. Both ways to start it are here: that of 0.5.23 and that of 0.5.18.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from parallax_backend_sglang.compat import Interface, find
from parallax_core.api import LayerRange, ParallaxError, Unsupported
from parallax_sampling_torch.stage_weights import StageWeights

BOOTSTRAP = "sglang.srt.distributed.bootstrap"
CONTEXT = "sglang.srt.runtime_context"
LOADER = "sglang.srt.model_loader.loader:DefaultModelLoader"
QUANTIZATION = "sglang.srt.layers.quantization"
RUNNER = "sglang.srt.model_executor.model_runner:ModelRunner"
WHOLE = "serve the whole model, without --stages and --layers, or choose another --backend"
DAMAGED = "the files may be incomplete, or of another model: fetch the model again"

RUNTIME: Interface = {
    "sglang.srt.server_args:PortArgs": ("init_new",),
    "sglang.srt.configs.model_config:ModelConfig": ("from_server_args",),
    "sglang.srt.layers.moe:initialize_moe_config": (),
    f"{QUANTIZATION}.fp8_utils:initialize_fp8_gemm_config": (),
    f"{QUANTIZATION}.fp4_utils:initialize_fp4_gemm_config": (),
    "sglang.srt.distributed.utils:get_pp_indices": ("num_hidden_layers", "pp_rank", "pp_size"),
    "sglang.srt.distributed.parallel_state:GroupCoordinator": ("is_first_rank", "is_last_rank"),
    f"{CONTEXT}:get_parallel": (),
    f"{LOADER}._get_all_weights": ("model_config", "model"),
    "sglang.srt.models.registry:ModelRegistry": ("get_supported_archs", "resolve_model_cls"),
}
"""What a stage uses of every release; see `compat.ENGINE`."""
NEW: Interface = {
    "sglang.srt.server_args:ServerArgs": ("resolve_once",),
    "sglang.srt.arg_groups.overrides:resolved_view": (),
    f"{BOOTSTRAP}:init_parallel_runtime": ("server_args", "device", "dist_port"),
    f"{BOOTSTRAP}:init_layer_runtime": ("model_config",),
    f"{CONTEXT}:publish": ("role", "ranks"),
    f"{CONTEXT}:SpawnRanks": ("world_rank", "gpu_id"),
    f"{CONTEXT}:spawn_world_rank": ("tp_rank", "pp_rank"),
    f"{CONTEXT}:get_device": (),
    f"{QUANTIZATION}.unquant:initialize_bf16_gemm_config": (),
    f"{RUNNER}.__init__": ("model_config", "mem_fraction_static", "gpu_id", "nccl_port", "server_args"),
}
"""The interface used in releases that make process groups before the model runner."""
OLD: Interface = {
    f"{BOOTSTRAP}:init_torch_distributed": ("server_args", "model_config", "device", "ps"),
    "sglang.srt.distributed.parallel_state_wrapper:ParallelState": ("trivial",),
    f"{RUNNER}.__init__": ("model_config", "mem_fraction_static", "gpu_id", "ps", "nccl_port", "server_args"),
}
"""The interface used in releases with process groups made by the model runner."""


@dataclass(frozen=True, slots=True)
class StageRank:
    """The place of a stage in a model."""

    layers: LayerRange
    num_layers: int
    """The number of layers of the model."""

    @property
    def is_first(self) -> bool:
        """Whether it embeds tokens."""
        return self.layers.start == 0

    @property
    def is_last(self) -> bool:
        """Whether it computes logits."""
        return self.layers.stop == self.num_layers


def is_new() -> bool:
    """Return whether the installed release makes its process groups before the model runner."""
    return hasattr(find(BOOTSTRAP), "init_parallel_runtime")


def list_interface() -> Interface:
    """Return what a stage uses of the installed release to start it."""
    return {**RUNTIME, **(NEW if is_new() else OLD)}


def make_runner(arguments: Mapping[str, Any], rank: StageRank, weights: StageWeights) -> Any:  # noqa: ANN401
    """Start SGLang and load the layers of a stage; return its ``ModelRunner``. Once in a process.

    Args:
        arguments: of SGLang's `ServerArgs`.
        rank: the layers.
        weights: reads the tensors of the layers.

    Raises:
        Unsupported: if SGLang cannot split the family, or its layers keep anything but one KV cache.
        ParallaxError: if files are damaged or incomplete.
    """
    _choose_layers(rank.layers)
    config, options = (_start_new if is_new() else _start_old)(arguments, rank)
    _read_from(weights)
    try:
        runner = find(RUNNER)(model_config=config, **options)
    except ParallaxError:
        raise
    except (ValueError, KeyError, AssertionError, RuntimeError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ParallaxError(f"SGLang cannot load {weights.model.name}: {reason}", DAMAGED) from error
    _set_rank(is_first=rank.is_first, is_last=rank.is_last)
    if not rank.is_last and hasattr(runner.model, "lm_head"):
        runner.model.lm_head = torch.nn.Identity()  # only the last stage has logits
    _check_loaded(runner.model, weights)
    return runner


def _start_new(arguments: Mapping[str, Any], rank: StageRank) -> tuple[Any, dict[str, Any]]:
    """Initialize a release of `NEW`; return the configuration of the model and the options of ``ModelRunner``."""
    args = find("sglang.srt.server_args:ServerArgs")(**arguments)
    args.resolve_once()
    ports = find("sglang.srt.server_args:PortArgs").init_new(args)
    world_rank = find(f"{CONTEXT}:spawn_world_rank")(args, tp_rank=0, pp_rank=0)
    gpu = arguments["base_gpu_id"]
    ranks = find(f"{CONTEXT}:SpawnRanks")(world_rank=world_rank, gpu_id=gpu)
    find(f"{CONTEXT}:publish")(args, role="scheduler", ranks=ranks)
    find("sglang.srt.layers.moe:initialize_moe_config")()
    for name in ("fp8_utils:initialize_fp8", "unquant:initialize_bf16", "fp4_utils:initialize_fp4"):
        find(f"{QUANTIZATION}.{name}_gemm_config")()
    config = find("sglang.srt.configs.model_config:ModelConfig").from_server_args(args)
    check_family(config, rank)
    device = find(f"{CONTEXT}:get_device")().device
    find(f"{BOOTSTRAP}:init_parallel_runtime")(server_args=args, device=device, dist_port=ports.nccl_port)
    find(f"{BOOTSTRAP}:init_layer_runtime")(model_config=config)
    _set_rank_for_loading(config, rank)
    fraction = find("sglang.srt.arg_groups.overrides:resolved_view")(args).mem_fraction_static
    return config, _make_options(fraction, gpu, ports, args)


def _start_old(arguments: Mapping[str, Any], rank: StageRank) -> tuple[Any, dict[str, Any]]:
    """Initialize a release of `OLD`, as `_start_new`; ``ModelRunner`` makes the process groups."""
    args = find("sglang.srt.server_args:ServerArgs")(**arguments)
    ports = find("sglang.srt.server_args:PortArgs").init_new(args)
    find("sglang.srt.layers.moe:initialize_moe_config")(args)
    for name in ("fp8_utils:initialize_fp8", "fp4_utils:initialize_fp4"):
        find(f"{QUANTIZATION}.{name}_gemm_config")(args)
    config = find("sglang.srt.configs.model_config:ModelConfig").from_server_args(args)
    check_family(config, rank)
    bootstrap, gpu = find(BOOTSTRAP), arguments["base_gpu_id"]
    start = bootstrap.init_torch_distributed

    def start_as_rank(**options: object) -> object:
        found = start(**options)
        _set_rank_for_loading(config, rank)
        return found

    bootstrap.init_torch_distributed = start_as_rank
    state = find("sglang.srt.distributed.parallel_state_wrapper:ParallelState").trivial(gpu_id=gpu)
    return config, _make_options(args.mem_fraction_static, gpu, ports, args) | {"ps": state}


def _make_options(fraction: float, gpu: int, ports: Any, args: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"mem_fraction_static": fraction, "gpu_id": gpu, "nccl_port": ports.nccl_port, "server_args": args}


def check_family(config: Any, rank: StageRank) -> None:  # noqa: ANN401 -- SGLang is not typed here
    """Refuse models that cannot be stages, by SGLang's ``ModelConfig``.

    Raises:
        Unsupported: naming the architecture, and what it lacks.
    """
    names = config.hf_config.architectures
    for attribute, what in (
        ("is_multimodal", "inputs other than text"),
        ("is_encoder_decoder", "an encoder"),
        ("is_hybrid_swa", "sliding windows with a KV cache of their own"),
    ):
        if getattr(config, attribute, False):
            raise Unsupported(f"{names[0]} has {what}, which a stage on SGLang does not support", WHOLE)
    model, _ = find("sglang.srt.models.registry:ModelRegistry").resolve_model_cls(names)
    is_whole = rank.is_first and rank.is_last
    if not is_whole and "pp_proxy_tensors" not in inspect.signature(model.forward).parameters:
        raise Unsupported(f"SGLang does not split {names[0]}: it has no support for pipelines", WHOLE)


def _choose_layers(layers: LayerRange) -> None:
    """Make SGLang build, load and keep these layers only, in every module that asks for them."""
    find("sglang.srt.models.registry:ModelRegistry").get_supported_archs()  # imports the models
    asked = find("sglang.srt.distributed.utils:get_pp_indices")
    bounds = layers.start, layers.stop
    for module in list(sys.modules.values()):
        if vars(module).get("get_pp_indices") is asked:
            module.get_pp_indices = lambda *_, **__: bounds  # type: ignore[attr-defined]


def _set_rank_for_loading(config: Any, rank: StageRank) -> None:  # noqa: ANN401
    """Set the rank of the process while the model is made.

    The output head of a tied model is its embedding, which SGLang makes for a first rank only.
    """
    text = getattr(config, "hf_text_config", config.hf_config)
    is_tied = bool(getattr(text, "tie_word_embeddings", False))
    _set_rank(is_first=rank.is_first or (rank.is_last and is_tied), is_last=rank.is_last)


def _set_rank(*, is_first: bool, is_last: bool) -> None:
    """Make SGLang's only rank of a pipeline the first one or not, and the last one or not."""
    group = find(f"{CONTEXT}:get_parallel")().pp_group
    base = find("sglang.srt.distributed.parallel_state:GroupCoordinator")
    group.__class__ = type("StageGroup", (base,), {"is_first_rank": is_first, "is_last_rank": is_last})


def _read_from(weights: StageWeights) -> None:
    """Make SGLang's loader read ``weights``, into parameters that are NaN until then."""

    def load(_: object, model_config: Any, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:  # noqa: ANN401
        if not model_config.quantization:
            for parameter in filter(torch.is_floating_point, model.parameters()):
                parameter.data.fill_(torch.nan)
        yield from weights.load()

    loader: Any = find(LOADER)
    replacement: Callable[..., Iterator[tuple[str, torch.Tensor]]] = load
    loader._get_all_weights = replacement  # noqa: SLF001 -- the method that reads the files


def _check_loaded(model: torch.nn.Module, weights: StageWeights) -> None:
    """Check that every parameter of a stage was read; SGLang does not.

    Raises:
        ParallaxError: naming one that was not.
    """
    left = [name for name, each in model.named_parameters() if each.is_floating_point() and each.isnan().any()]
    if left:
        message = f"the files of {weights.model.name} lack weights of these layers, or they are NaN, such as {left[0]}"
        raise ParallaxError(message, DAMAGED)
