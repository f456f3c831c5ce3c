"""The private parts of vLLM for a stage: pipeline group, worker, model runner, messages."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from parallax_backend_vllm.compat import Interface
from parallax_backend_vllm.residual import reads_residual
from parallax_backend_vllm.stage_group import StageGroup
from parallax_core.api import Unsupported

PARTITION = "VLLM_PP_LAYER_PARTITION"
"""The environment variable with the number of layers of each pipeline rank."""

STAGE: Interface = {
    "vllm:SamplingParams": ("temperature", "detokenize"),
    "vllm:EngineArgs": (
        *("model", "skip_tokenizer_init", "dtype", "max_model_len", "quantization", "load_format", "enforce_eager"),
        *("enable_prefix_caching", "max_num_batched_tokens", "max_num_seqs", "block_size", "kv_cache_dtype"),
        *("disable_hybrid_kv_cache_manager", "kv_cache_memory_bytes", "async_scheduling", "generation_config"),
        *("enable_chunked_prefill", "distributed_executor_backend", "create_engine_config"),
    ),
    "vllm.config:CacheConfig": ("num_gpu_blocks", "block_size", "kv_cache_layout"),
    "vllm.config:ModelConfig": (
        *("get_hidden_size", "get_vocab_size", "max_model_len", "dtype", "architectures", "registry"),
        *("is_hybrid", "is_attention_free", "is_encoder_decoder", "is_multimodal_model"),
    ),
    "vllm.config:ParallelConfig": ("pipeline_parallel_size", "rank"),
    "vllm.config:SchedulerConfig": ("max_num_batched_tokens",),
    "vllm.config:set_current_vllm_config": ("vllm_config",),
    "vllm.sequence:IntermediateTensors": ("tensors", "items"),
    "vllm.distributed.parallel_state:_PP": (),
    "vllm.distributed.utils:get_pp_indices": ("num_hidden_layers", "pp_rank", "pp_size"),
    "vllm.utils.network_utils:get_file_store_init_method": (),
    "vllm.platforms:current_platform": ("update_block_size_for_backend",),
    "vllm.model_executor.models:ModelRegistry": ("is_pp_supported_model",),
    "vllm.model_executor.model_loader:register_model_loader": ("load_format",),
    "vllm.model_executor.model_loader.default_loader:DefaultModelLoader.get_all_weights": ("model_config", "model"),
    "vllm.v1.attention.backends.utils:resolve_kv_cache_layout": ("vllm_config", "supported_layouts", "kv_cache_specs"),
    "vllm.v1.core.kv_cache_utils:KVCacheBlockCopy": ("src_block_id", "dst_block_id"),
    "vllm.v1.core.kv_cache_utils:get_kv_cache_groups": ("vllm_config", "kv_cache_spec"),
    "vllm.v1.core.kv_cache_utils:get_kv_cache_config_from_groups": (
        *("vllm_config", "kv_cache_groups", "available_memory"),
    ),
    "vllm.v1.core.sched.output:NewRequestData": (
        *("req_id", "prompt_token_ids", "mm_features", "sampling_params", "pooling_params", "block_ids"),
        *("num_computed_tokens", "lora_request"),
    ),
    "vllm.v1.core.sched.output:SchedulerOutput": (
        *("make_empty", "scheduled_new_reqs", "num_scheduled_tokens", "total_num_scheduled_tokens"),
        *("finished_req_ids", "kv_cache_block_copies"),
    ),
    "vllm.v1.kv_cache_interface:KVCacheConfig": ("num_blocks", "kv_cache_layout"),
    "vllm.v1.kv_cache_interface:KVCacheSpec": ("block_size", "page_size_bytes"),
    "vllm.v1.worker.gpu_model_runner:ExecuteModelState": ("logits", "hidden_states"),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.execute_model": ("scheduler_output", "intermediate_tensors"),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.sync_and_gather_intermediate_tensors": ("intermediate_tensors",),
    "vllm.v1.worker.worker_base:WorkerBase": (
        *("get_supported_kv_cache_layouts", "set_kv_cache_layout", "load_model", "get_kv_cache_spec"),
    ),
    "vllm.v1.worker.worker_base:WorkerWrapperBase": ("init_worker", "init_device", "initialize_from_config"),
}
"""What a stage uses."""
RUNNER = ("execute_model_state", "input_batch", "intermediate_tensors", "kv_caches", "max_num_reqs", "model")
"""The attributes of a model runner that a stage uses."""
FOLDED = frozenset({"hidden_states", "residual"})
"""The tensors that a family may hand on between stages: see `reads_residual`."""


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The KV cache of a stage, in vLLM's blocks."""

    num_blocks: int
    block_size: int
    """Tokens in a block."""
    is_latent: bool
    """Whether a block holds latents."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """Consecutive tokens of one sequence, as vLLM's runner computes them."""

    tokens: Sequence[int]
    """All tokens of the sequence, with those of the row at the end."""
    start: int
    """The number of tokens before the row."""
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class Found:
    """The results of vLLM's runner, by rows in the order of the step."""

    hidden: torch.Tensor
    """The folded hidden states, or after the last layer the normalised ones, of shape [tokens, width]."""
    last_logits: torch.Tensor | None
    """After the last layer: the logits of the last token of each row, of shape [rows, vocab size]."""


@contextmanager
def join_group(group: StageGroup) -> Iterator[None]:
    """Let vLLM see ``group`` as its pipeline group, and its partition of the layers, until the end of a with."""
    from vllm.distributed import parallel_state

    before, partition = parallel_state._PP, os.environ.get(PARTITION)  # noqa: SLF001 -- what vLLM's models ask
    group.real = group.real or before
    parallel_state._PP = group  # noqa: SLF001
    os.environ[PARTITION] = ",".join(map(str, group.partition))
    try:
        yield
    finally:
        parallel_state._PP = before  # noqa: SLF001
        if partition is None:
            del os.environ[PARTITION]
        else:
            os.environ[PARTITION] = partition


class StageWorker:
    """A worker of vLLM with some layers of a model, driven without vLLM's scheduler and cache manager.

    Args:
        config: the ``VllmConfig``.
        group: the layers, as a pipeline group.
    """

    def __init__(self, config: Any, group: StageGroup) -> None:  # noqa: ANN401 -- vLLM is not typed here
        self._config, self._group = config, group
        self._wrapper: Any = None
        self._runner: Any = None
        self._params: Any = None
        self._last: set[str] = set()
        self._steps = 0
        self._adds_residual = True

    def load(self) -> None:
        """Start the worker on its device and load the weights.

        Raises:
            Unsupported: if the model's family hands on other tensors than one residual stream.
        """
        from vllm import SamplingParams
        from vllm.platforms import current_platform
        from vllm.utils.network_utils import get_file_store_init_method
        from vllm.v1.worker.worker_base import WorkerWrapperBase

        parallel = self._config.parallel_config
        self._wrapper = WorkerWrapperBase(rpc_rank=0)
        place = {"local_rank": 0, "rank": 0, "distributed_init_method": get_file_store_init_method()}
        self._wrapper.init_worker([{"vllm_config": self._config, **place, "is_driver_worker": True}])
        self._wrapper.init_device()
        parallel.pipeline_parallel_size, parallel.rank = self._group.world_size, self._group.rank_in_group
        with join_group(self._group):
            self._wrapper.load_model()
            current_platform.update_block_size_for_backend(self._config)
            self._runner = self._wrapper.model_runner
            self._params = SamplingParams(temperature=0.0, detokenize=False)
            self._check_runner()
        self._adds_residual = all(map(reads_residual, {type(each) for each in self._runner.model.modules()}))

    def allocate_cache(self, num_bytes: int, most_tokens: int) -> CacheSize:
        """Allocate the KV cache.

        Args:
            num_bytes: the memory that it may take.
            most_tokens: the most tokens it is useful for.

        Raises:
            Unsupported: if the layers need several kinds of caches.
            ValueError: if not even two blocks fit.
        """
        from vllm.config import set_current_vllm_config
        from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
        from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups, get_kv_cache_groups

        config, worker = self._config, self._wrapper.worker
        with join_group(self._group), set_current_vllm_config(config):
            specs = worker.get_kv_cache_spec()
            layout = resolve_kv_cache_layout(config, [worker.get_supported_kv_cache_layouts()], specs.values())
            worker.set_kv_cache_layout(layout.name)
            groups = get_kv_cache_groups(config, specs)
            if len(groups) != 1 or "block_size" not in dir(groups[0].kv_cache_spec):
                raise Unsupported(f"its layers need {len(groups)} kinds of KV caches", "use another backend for it")
            spec = groups[0].kv_cache_spec
            block_bytes = sum(each.page_size_bytes for each in specs.values())
            num_bytes = min(num_bytes, block_bytes * (2 + most_tokens // spec.block_size))
            if num_bytes < 2 * block_bytes:
                raise ValueError(f"two blocks of the KV cache take {2 * block_bytes} bytes")
            cache = get_kv_cache_config_from_groups(config, groups, num_bytes)
            cache.kv_cache_layout = config.cache_config.kv_cache_layout
            config.cache_config.num_gpu_blocks, config.cache_config.block_size = cache.num_blocks, spec.block_size
            self._wrapper.initialize_from_config([cache])
        self._make_buffers()
        return CacheSize(cache.num_blocks, spec.block_size, "MLA" in type(spec).__name__)

    @property
    def most_rows(self) -> int:
        """The most rows in one call of `run`."""
        return int(self._runner.max_num_reqs)

    @property
    def device(self) -> torch.device:
        """The device of the stage."""
        return torch.device(self._runner.device)

    def run(self, rows: Sequence[RunRow], hidden: torch.Tensor | None) -> Found:
        """Compute rows; ``hidden`` are the hidden states before the first layer of the stage, on its device.

        Every row is a new request to vLLM, which ends with the step: so there is no state of vLLM's to be rolled back,
        forked or truncated.
        """
        from vllm.v1.core.sched.output import NewRequestData

        self._steps += 1
        names = [f"{self._steps}-{index}" for index in range(len(rows))]
        counts = {name: len(row.tokens) - row.start for name, row in zip(names, rows, strict=True)}
        requests = [
            NewRequestData(
                req_id=name,
                prompt_token_ids=list(row.tokens),
                mm_features=[],
                sampling_params=self._params,
                pooling_params=None,
                block_ids=(list(row.blocks),),
                num_computed_tokens=row.start,
                lora_request=None,
            )
            for name, row in zip(names, rows, strict=True)
        ]
        given = None if hidden is None else _OrderedRows(hidden, counts, self._runner)
        found = self._execute(
            given,
            scheduled_new_reqs=requests,
            num_scheduled_tokens=counts,
            total_num_scheduled_tokens=sum(counts.values()),
        )
        return self._read(found, counts)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks, each as (source, target)."""
        from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy

        self._execute(None, kv_cache_block_copies=[KVCacheBlockCopy(*pair) for pair in pairs])

    def recover(self, blocks: Sequence[int]) -> None:
        """Forget the requests of a failed step, and put zeros for what is not finite in the blocks it wrote.

        Attention multiplies whole blocks, also slots beyond a sequence: one NaN there would make all results NaN.
        """
        self._execute(None)
        for cache in self._runner.kv_caches:
            if cache.is_floating_point():
                size = len(cache) // self._config.cache_config.num_gpu_blocks
                for block in blocks:
                    cache[block * size : (block + 1) * size].nan_to_num_(0.0, 0.0, 0.0)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits after normalised hidden states of shape [tokens, width]."""
        with join_group(self._group), torch.inference_mode():
            logits: torch.Tensor = self._runner.model.compute_logits(hidden)
        return logits

    def close(self) -> None:
        """Release the model and the KV cache."""
        self._wrapper = self._runner = self._config = None

    def _execute(self, given: object, **fields: object) -> object:
        from vllm.v1.core.sched.output import SchedulerOutput

        finished, self._last = self._last, set(fields.get("num_scheduled_tokens", ()))  # type: ignore[call-overload]
        output = replace(SchedulerOutput.make_empty(), finished_req_ids=finished, **fields)
        self._runner.execute_model_state = None
        with ExitStack() as stack:
            stack.enter_context(join_group(self._group))
            stack.enter_context(torch.inference_mode())
            return self._runner.execute_model(output, given)

    def _read(self, found: Any, counts: Mapping[str, int]) -> Found:  # noqa: ANN401 -- vLLM is not typed here
        """Return the results in the order of ``counts``; vLLM may have put the rows in another order."""
        state, self._runner.execute_model_state = self._runner.execute_model_state, None
        order = list(self._runner.input_batch.req_ids)
        if state is None:
            hidden = found.tensors["hidden_states"]
            if self._adds_residual and "residual" in found.tensors:
                hidden = hidden + found.tensors["residual"]
            return Found(_permute(hidden, order, counts), None)
        places = [order.index(name) for name in counts] if order != list(counts) else None
        logits = state.logits if places is None else state.logits[places]
        return Found(_permute(state.hidden_states[: sum(counts.values())], order, counts), logits)

    def _check_runner(self) -> None:
        missing = [name for name in RUNNER if not hasattr(self._runner, name)]
        if missing:
            raise Unsupported(f"vLLM's model runner has no {', '.join(missing)}", "install a supported release of vLLM")

    def _make_buffers(self) -> None:
        """Make the buffers for hidden states of earlier stages, which vLLM makes when it profiles."""
        if self._group.is_first_rank:
            return
        config, runner = self._config, self._runner
        made = runner.model.make_empty_intermediate_tensors(
            batch_size=config.scheduler_config.max_num_batched_tokens,
            dtype=config.model_config.dtype,
            device=runner.device,
        )
        if strange := set(made.tensors) - FOLDED:
            raise Unsupported(f"its stages exchange {', '.join(sorted(strange))}", "serve the model whole")
        runner.intermediate_tensors = made


class _OrderedRows:
    """Hidden states in the order of vLLM's rows, which is known only once it has read them; the residual is zero."""

    def __init__(self, hidden: torch.Tensor, counts: Mapping[str, int], runner: Any) -> None:  # noqa: ANN401
        self._hidden, self._counts, self._runner = hidden, counts, runner

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors that the model takes, with their names."""
        order = list(self._runner.input_batch.req_ids)
        hidden = _permute(self._hidden, list(self._counts), {name: self._counts[name] for name in order})
        for name in self._runner.intermediate_tensors.tensors:
            yield name, hidden if name == "hidden_states" else torch.zeros_like(hidden)


def _permute(states: torch.Tensor, order: Sequence[str], counts: Mapping[str, int]) -> torch.Tensor:
    """Return the tokens of rows that lie in ``order``, in the order of ``counts``, the number of tokens of each."""
    if list(counts) == list(order):
        return states
    parts = dict(zip(order, states.split([counts[name] for name in order]), strict=True))
    return torch.cat([parts[name] for name in counts])
