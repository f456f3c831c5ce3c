"""The options of the backend: the section ``[vllm]`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmSettings:
    """The settings of this backend; `EnginePlan.options` and `StagePlan.options` have a value for each field."""

    max_model_len: Annotated[
        int, Meta(description="The longest sequence in tokens, prompt and answer; 0: as long as the model allows.")
    ] = 0
    quantization: Annotated[
        str, Meta(description="vLLM's quantization method, such as fp8 or awq; empty: as the checkpoint states.")
    ] = ""
    tensor_parallel: Annotated[
        int, Meta(description="The number of GPUs that share each layer; more than 1 needs CUDA.")
    ] = 1
    pipeline_parallel: Annotated[
        int, Meta(description="The number of GPUs among which vLLM itself splits the layers; more than 1 needs CUDA.")
    ] = 1
    gpu_memory_utilization: Annotated[
        float, Meta(description="On CUDA, the share of each GPU's memory that vLLM may use for everything.")
    ] = 0.9
    kv_cache_gb: Annotated[
        float,
        Meta(description="The KV cache in gigabytes; 0: on a CPU by memory_fraction, on CUDA what vLLM measures."),
    ] = 0.0
    kv_cache_dtype: Annotated[
        str, Meta(description="The dtype of the KV cache, such as fp8; auto follows --dtype.")
    ] = "auto"
    block_size: Annotated[
        int, Meta(description="Tokens in a page of the KV cache of a stage; 0: vLLM's choice, which on a CPU is 128.")
    ] = 0
    enforce_eager: Annotated[
        Literal["auto", "on", "off"],
        Meta(
            description="Compute without torch.compile and CUDA graphs; auto: on a CPU, where compiling takes a minute."
        ),
    ] = "auto"
    prefix_caching: Annotated[
        Literal["on", "off"], Meta(description="Keep the KV cache of prompts for later prompts that begin alike.")
    ] = "on"
    threads: Annotated[
        int, Meta(description="On a CPU, the threads that compute; 0: one fewer than the cores of this process.")
    ] = 0
    max_loras: Annotated[
        int, Meta(description="The most LoRA adapters in one batch; 0: vLLM takes none, which costs it nothing.")
    ] = 0
    max_lora_rank: Annotated[int, Meta(description="The largest rank of a LoRA adapter.")] = 16

    def __post_init__(self) -> None:
        """Check the values that types do not restrict.

        Raises:
            ValueError: if a number is out of range.
        """
        for name in ("max_model_len", "threads", "kv_cache_gb", "block_size", "max_loras"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be 0 or more")
        for name in ("tensor_parallel", "pipeline_parallel", "max_lora_rank"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be 1 or more")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization}, and must be above 0 and at most 1"
            )
