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
    lora: Annotated[
        tuple[str, ...],
        Meta(description="LoRA adapters that requests may name, each as NAME=FOLDER, separated by commas."),
    ] = ()
    log_level: Annotated[
        Literal["error", "warning", "info", "debug"], Meta(description="The least severe messages of SGLang to log.")
    ] = "error"

    def __post_init__(self) -> None:
        """Check the values that types do not restrict.

        Raises:
            ValueError: if a number is out of range, or an adapter is not of the form NAME=FOLDER.
        """
        for name, least in (("context_length", 0), ("max_total_tokens", 0), ("threads", 0), ("tensor_parallel", 1)):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"{name} is {value}, and must be {least} or more")
        if not 0 <= self.mem_fraction_static < 1:
            raise ValueError(f"mem_fraction_static is {self.mem_fraction_static}, and must be from 0 to below 1")
        for text in self.lora:
            name, _, folder = text.partition("=")
            if not (name and folder):
                raise ValueError(f"lora has {text!r}, which is not of the form NAME=FOLDER")

    @property
    def adapters(self) -> dict[str, str]:
        """The folder of each LoRA adapter, by name."""
        return dict(text.split("=", 1) for text in self.lora)
