"""The families that vLLM has, and those that its own stages cannot hold. Imports no vLLM.

Of vLLM 0.32.0: the registry of its models, and what ``supports_pp``, ``is_hybrid`` and ``supports_multimodal`` of
``vllm.model_executor.models.interfaces`` say of their classes; where a class needs torchvision, its base classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from parallax_backend_vllm.probe import MACHINE
from parallax_backend_vllm.versions import find_installed
from parallax_core.api import EnginePlan, StagePlan, Unsupported, check_plain_stage, read_config

RELEASE = "0.32.0"
PLAIN = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV4ForCausalLM",
        "Ernie4_5ForCausalLM",
        "Ernie4_5_MoeForCausalLM",
        "Exaone4ForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "Gemma4ForCausalLM",
        "Glm4ForCausalLM",
        "Glm4MoeForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "GlmMoeDsaForCausalLM",
        "GptOssForCausalLM",
        "GraniteForCausalLM",
        "HYV4ForCausalLM",
        "HunYuanDenseV1ForCausalLM",
        "HunYuanMoEV1ForCausalLM",
        "Llama4ForCausalLM",
        "LlamaForCausalLM",
        "MiniMaxM2ForCausalLM",
        "Ministral3ForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "Olmo3ForCausalLM",
        "Phi3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "SeedOssForCausalLM",
        "SmolLM3ForCausalLM",
        "Step3p5ForCausalLM",
    }
)
"""With support for pipelines, and keys and values alone."""
HYBRID = frozenset(
    {
        "FalconH1ForCausalLM",
        "GraniteMoeHybridForCausalLM",
        "KimiLinearForCausalLM",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "NemotronHForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
        "Qwen4ExpForCausalLM",
    }
)
"""With recurrent states."""
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
ABSENT = frozenset({"MiniMaxM3VLForCausalLM"})
DIFFER = "its results differ from those of transformers"
SPARSE = "Sparse Attention is not supported on CPU."
LACKING = "it needs torchvision, which the environment for CPUs lacks"
ON_CPU: dict[str, str] = {
    "DeepseekV2ForCausalLM": DIFFER,
    "DeepseekV32ForCausalLM": SPARSE,
    "DeepseekV4ForCausalLM": "its transformers does not know the kinds of its layers",
    "Ernie4_5_MoeForCausalLM": DIFFER,
    "Glm4MoeLiteForCausalLM": DIFFER,
    "Glm5NextForConditionalGeneration": LACKING,
    "GlmMoeDsaForCausalLM": SPARSE,
    "GptOssForCausalLM": "No Unquantized MoE backend supports the deployment configuration.",
    "GraniteMoeHybridForCausalLM": DIFFER,
    "HYV4ForCausalLM": SPARSE,
    "KimiLinearForCausalLM": "its states need pages that prefixes share",
    "Lfm2ForCausalLM": DIFFER,
    "Lfm2MoeForCausalLM": DIFFER,
    "MiniMaxM2ForCausalLM": "its router for CPUs scores experts by softmax alone",
    "MiniMaxM3SparseForConditionalGeneration": LACKING,
    "Ministral3ForCausalLM": DIFFER,
    "Mistral3ForConditionalGeneration": LACKING,
    "Qwen3_5ForCausalLM": LACKING,
    "Qwen3_5ForConditionalGeneration": LACKING,
    "Qwen3_5MoeForCausalLM": LACKING,
    "Qwen3_5MoeForConditionalGeneration": LACKING,
    "Qwen4ExpForCausalLM": LACKING,
    "Qwen4ExpForConditionalGeneration": LACKING,
    "Step3p7ForConditionalGeneration": "its transformers keeps the number of heads by layer, which it does not read",
}
"""What vLLM's build for CPUs says of the families that it has, and does not run."""
FLOAT32_ON_CPU = {"Qwen3NextForCausalLM": "CPU GDN attention requires BF16."}
"""The same of families that it does not run in float32."""
EXPERTS_ON_CPU = {"NemotronHForCausalLM": "is_act_and_mul=False is supported only for CUDA, XPU and ROCm for now"}
"""The same of families that it runs without experts only."""
UNREAD = {
    "Ernie4_5ForCausalLM": "use_bias",
    "Ernie4_5_MoeForCausalLM": "use_bias",
    "Llama4ForCausalLM": "attention_bias",
}
"""A setting that vLLM does not read, by the architecture that has it; the results would be others."""
UNTIED = frozenset({"Ernie4_5_MoeForCausalLM"})
"""Architectures whose stages vLLM cannot build if the head is the embedding."""
LATENTS = "keeps latents, and on a CPU vLLM's kernels for them do not go on with a prompt, as a stage does"
HINT = "serve the model whole: --backend vllm without --stages and --layers"


def check_family(plan: StagePlan) -> bool:
    """Tell whether vLLM runs the layers of a plan; see `parallax_core.api.BackendSpec.check`."""
    names = [str(name) for name in read_config(plan.model).get("architectures") or ()]
    family, found = ", ".join(names), set(names)
    if found and found <= ABSENT:
        message = f"vLLM {RELEASE} has no model for the architecture {family}"
        raise Unsupported(message, "choose another --backend: `parallax plugins` lists them")
    _check_settings(plan, found)
    is_on_cpu = not MACHINE.has_nvidia_driver()
    if is_on_cpu:
        check_cpu(plan)
        if plan.shape and any(layer.active_weights < layer.weights for layer in plan.shape.layers):
            _refuse(found, EXPERTS_ON_CPU)
    if plan.layers is not None:
        for group, what in ((HYBRID, "recurrent states"), (SEEING, "inputs other than text")):
            if found & group:
                raise Unsupported(f"{family} has {what}, which a stage on vLLM does not support", HINT)
        check_plain_stage(plan, plan.layers, "vLLM")
        if is_on_cpu and plan.shape and any(layer.kind == "latent" for layer in plan.shape.layers):
            raise Unsupported(f"{family} {LATENTS}", HINT)
    return bool(found & (PLAIN | HYBRID | SEEING))


def _check_settings(plan: StagePlan, found: Iterable[str]) -> None:
    config = read_config(plan.model)
    for name in found:
        setting = UNREAD.get(name)
        if setting and config.get(setting):
            message = f"vLLM {RELEASE} does not read {setting!r} of {name}, and its results would be others"
            raise Unsupported(message, "choose another --backend")
        if plan.layers is not None and name in UNTIED and config.get("tie_word_embeddings"):
            raise Unsupported(f"vLLM {RELEASE} does not split {name} if its head is the embedding", HINT)


def check_cpu(plan: EnginePlan | StagePlan) -> None:
    """Refuse a family that vLLM's build for CPUs does not run; of other releases nothing is known.

    Raises:
        Unsupported: naming the architecture and the reason.
    """
    found = {str(name) for name in read_config(plan.model).get("architectures") or ()}
    if find_installed() in {"", RELEASE}:
        _refuse(found, ON_CPU | (FLOAT32_ON_CPU if plan.dtype == "float32" else {}))


def _refuse(found: Iterable[str], reasons: Mapping[str, str]) -> None:
    for name in found:
        if name in reasons:
            message = f"vLLM {RELEASE} does not run {name} on a CPU: {reasons[name]}"
            raise Unsupported(message, "use a machine with an NVIDIA GPU, or choose another --backend")
