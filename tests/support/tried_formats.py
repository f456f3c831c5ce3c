"""The model types whose answers were those of the floats that their weights stand for, and the forms of the weights.

``test_torch_formats`` tries them again, most of them nightly; the page of families shows them.
"""

from __future__ import annotations

ALL = ("mlx", "fp8", "awq", "gptq", "compressed-tensors")
"""Those that `tests.support.quantised` writes."""
TRIED: dict[str, tuple[str, ...]] = dict.fromkeys(
    (
        "deepseek_v2",
        "deepseek_v3",
        "ernie4_5",
        "ernie4_5_moe",
        "exaone4",
        "falcon_h1",
        "gemma2",
        "gemma3_text",
        "gemma4_text",
        "glm4",
        "glm4_moe",
        "granite",
        "hunyuan_v1_dense",
        "hunyuan_v1_moe",
        "kimi_linear",
        "lfm2",
        "lfm2_moe",
        "llama",
        "minimax_m2",
        "mistral",
        "mixtral",
        "olmo3",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_5_text",
        "qwen3_moe",
        "qwen3_next",
        "smollm3",
    ),
    ALL,
)
