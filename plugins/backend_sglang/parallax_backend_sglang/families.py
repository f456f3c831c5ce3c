"""The families that SGLang has, and those that its own stages cannot hold. Imports no SGLang.

Of SGLang 0.5.23: the classes that its model files name in ``EntryClass``, and whether their ``forward`` takes
``pp_proxy_tensors``, as the sources in its wheel have it. Of a class that it has not, SGLang tries the code of
transformers, of which nothing is recorded.
"""

from __future__ import annotations

from pathlib import Path

from parallax_backend_sglang.versions import find_installed
from parallax_core.api import LayerRange, Machine, StagePlan, Unsupported, check_plain_stage, read_config

RELEASE = "0.5.23"
PLAIN = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV4ForCausalLM",
        "Exaone4ForCausalLM",
        "Gemma4ForCausalLM",
        "Glm4ForCausalLM",
        "Glm4MoeForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "GlmMoeDsaForCausalLM",
        "GptOssForCausalLM",
        "GraniteMoeHybridForCausalLM",
        "KimiLinearForCausalLM",
        "Llama4ForCausalLM",
        "LlamaForCausalLM",
        "MiniMaxM2ForCausalLM",
        "Ministral3ForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "NemotronHForCausalLM",
        "Phi3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
        "Step3p5ForCausalLM",
    }
)
"""With support for pipelines; some have states or windows, which their adapters say."""
UNSPLIT = frozenset(
    {
        "Ernie4_5_MoeForCausalLM",
        "FalconH1ForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "GraniteForCausalLM",
        "HYV4ForCausalLM",
        "HunYuanDenseV1ForCausalLM",
        "HunYuanMoEV1ForCausalLM",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "Qwen3NextForCausalLM",
    }
)
"""Without support for pipelines."""
SEEING = frozenset(
    f"{name}ForConditionalGeneration"
    for name in (
        "Gemma4",
        "Glm5Next",
        "Llama4",
        "MiniMaxM3Sparse",
        "Mistral3",
        "Qwen3_5",
        "Qwen3_5Moe",
        "Qwen4Exp",
        "Step3p7",
    )
)
"""With inputs other than text."""
DELTA = "its sgl_kernel lacks fused_sigmoid_gating_delta_rule_update_cpu"
ATTENTION = "it needs an attention of Triton or GPUs"
DIFFER = "its results differ from those of transformers"
LACKING = "its model file needs what the environment for CPUs lacks"
PER_LAYER = "its transformers keeps settings by layer, which it does not read"
ON_CPU: dict[str, str] = {
    "DeepseekV2ForCausalLM": "AssertionError in its attention to latents",
    "DeepseekV32ForCausalLM": "AssertionError: Torch not compiled with CUDA enabled",
    "DeepseekV4ForCausalLM": "it does not read 'compress_rates'",
    "Exaone4ForCausalLM": ATTENTION,
    "FalconH1ForCausalLM": DELTA,
    "GptOssForCausalLM": ATTENTION,
    "Qwen3NextForCausalLM": DELTA,
    "DeepseekV3ForCausalLM": "RuntimeError in its attention to latents",
    "GlmMoeDsaForCausalLM": "AssertionError: Torch not compiled with CUDA enabled",
    "Glm5NextForConditionalGeneration": "AssertionError: Torch not compiled with CUDA enabled",
    "Glm4MoeLiteForCausalLM": "RuntimeError in its attention to latents",
    "Llama4ForCausalLM": "it does not read the experts of such a checkpoint",
    "MiniMaxM2ForCausalLM": "AssertionError in its attention",
    "Gemma2ForCausalLM": DIFFER,
    "Gemma4ForCausalLM": PER_LAYER,
    "GraniteMoeHybridForCausalLM": DELTA,
    "HYV4ForCausalLM": "AssertionError: Torch not compiled with CUDA enabled",
    "Lfm2ForCausalLM": DELTA,
    "Lfm2MoeForCausalLM": DELTA,
    "Ministral3ForCausalLM": DIFFER,
    "Mistral3ForConditionalGeneration": "it needs torchvision, which the environment for CPUs lacks",
    **dict.fromkeys(("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"), LACKING),
    **dict.fromkeys(("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"), LACKING),
    "Qwen4ExpForConditionalGeneration": LACKING,
    "Step3p7ForConditionalGeneration": PER_LAYER,
    "Qwen2MoeForCausalLM": "it needs Triton: 0 active drivers",
}
"""What SGLang says on a CPU of the families that it has, and does not run."""
HINT = "serve the model whole: --backend sglang without --stages and --layers"


def check_family(plan: StagePlan) -> bool:
    """Tell whether SGLang runs the layers of a plan; see `parallax_core.api.BackendSpec.check`."""
    names = [str(name) for name in read_config(plan.model).get("architectures") or ()]
    family, found = ", ".join(names), set(names)
    if not Machine().has_nvidia_driver():
        check_cpu(plan.model)
    if plan.layers is not None:
        if found & UNSPLIT:
            raise Unsupported(f"SGLang {RELEASE} does not split {family}: it has no support for pipelines", HINT)
        if found & SEEING:
            raise Unsupported(f"{family} has inputs other than text, which a stage on SGLang does not support", HINT)
        check_stage(plan, plan.layers)
    return bool(found & (PLAIN | UNSPLIT | SEEING))


def check_stage(plan: StagePlan, layers: LayerRange) -> None:
    """Refuse layers of a family that are more than a stage holds, as far as its adapter describes it.

    Raises:
        Unsupported: naming the family and the reason.
    """
    check_plain_stage(plan, layers, "SGLang")
    if plan.shape and any(layer.window for layer in plan.shape.layers):
        family = ", ".join(map(str, read_config(plan.model).get("architectures") or ()))
        message = f"{family} has sliding windows with a KV cache of their own, which a stage on SGLang lacks"
        raise Unsupported(message, HINT)


def check_cpu(folder: Path) -> None:
    """Refuse a model of `ON_CPU`; of other releases than that nothing is known.

    Raises:
        Unsupported: naming the architecture and the reason.
    """
    for name in read_config(folder).get("architectures") or ():
        if name in ON_CPU and find_installed() in {"", RELEASE}:
            message = f"SGLang {RELEASE} does not run {name} on a CPU: {ON_CPU[name]}"
            raise Unsupported(message, "use a machine with an NVIDIA GPU, or choose another --backend")
