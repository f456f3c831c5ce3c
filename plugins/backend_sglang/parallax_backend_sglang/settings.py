"""The options of the backend: the section ``[sglang]`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta


@dataclass(frozen=True, kw_only=True, slots=True)
class SglangSettings:
    """The settings of this backend; `EnginePlan.options` has a value for each field."""

    context_length: Annotated[
        int, Meta(description="The longest sequence in tokens, prompt and answer; 0: as long as the model allows.")
    ] = 0
    max_total_tokens: Annotated[
        int, Meta(description="The most tokens in the KV cache; 0: as many as memory_fraction leaves room for.")
    ] = 0
    quantization: Annotated[
        str, Meta(description="SGLang's quantization method, such as fp8 or awq; empty: as the checkpoint states.")
    ] = ""
    mem_fraction_static: Annotated[
        float,
        Meta(description="On CUDA, the share of each GPU's memory for weights and KV cache; 0: SGLang's choice."),
    ] = 0.0
    tensor_parallel: Annotated[
        int, Meta(description="The number of GPUs that share each layer; more than 1 needs CUDA.")
    ] = 1
    attention: Annotated[
        str, Meta(description="SGLang's attention backend; empty: torch_native on a CPU, on CUDA SGLang's choice.")
    ] = ""
    prefix_caching: Annotated[
        Literal["on", "off"], Meta(description="Keep the KV cache of prompts for later prompts that begin alike.")
    ] = "on"
    threads: Annotated[
        int, Meta(description="On a CPU, the threads that compute; 0: one for each core of this process.")
    ] = 0
    max_loras: Annotated[
        int, Meta(description="The most LoRA adapters in one batch; 0: SGLang takes none, which costs it nothing.")
    ] = 0
    max_lora_rank: Annotated[int, Meta(description="The largest rank of a LoRA adapter.")] = 16
    log_level: Annotated[
        Literal["error", "warning", "info", "debug"], Meta(description="The least severe messages of SGLang to log.")
    ] = "error"

    def __post_init__(self) -> None:
        """Check the values that types do not restrict.

        Raises:
            ValueError: if a number is out of range.
        """
        leasts = {"context_length": 0, "max_total_tokens": 0, "threads": 0, "max_loras": 0}
        for name, least in (leasts | {"tensor_parallel": 1, "max_lora_rank": 1}).items():
            if (value := getattr(self, name)) < least:
                raise ValueError(f"{name} is {value}, and must be {least} or more")
        if not 0 <= self.mem_fraction_static < 1:
            raise ValueError(f"mem_fraction_static is {self.mem_fraction_static}, and must be from 0 to below 1")
