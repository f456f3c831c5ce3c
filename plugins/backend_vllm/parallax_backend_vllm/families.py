"""The families that vLLM has, and those that its own stages cannot hold. Imports no vLLM.

Of vLLM 0.32.0: the registry of its models, and what ``supports_pp``, ``is_hybrid`` and ``supports_multimodal`` of
``vllm.model_executor.models.interfaces`` say of their classes; where a class needs torchvision, its base classes.
"""

from __future__ import annotations

from pathlib import Path

from parallax_backend_vllm.probe import MACHINE
from parallax_backend_vllm.versions import find_installed
from parallax_core.api import StagePlan, Unsupported, check_plain_stage, read_config

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
ON_CPU: dict[str, str] = {
    "GptOssForCausalLM": "No Unquantized MoE backend supports the deployment configuration.",
}
"""What vLLM's build for CPUs says of the families that it has, and does not run."""
LATENTS = "keeps latents, and on a CPU vLLM's kernels for them do not go on with a prompt, as a stage does"
HINT = "serve the model whole: --backend vllm without --stages and --layers"


def check_family(plan: StagePlan) -> bool:
    """Tell whether vLLM runs the layers of a plan; see `parallax_core.api.BackendSpec.check`."""
    names = [str(name) for name in read_config(plan.model).get("architectures") or ()]
    family, found = ", ".join(names), set(names)
    if found and found <= ABSENT:
        message = f"vLLM {RELEASE} has no model for the architecture {family}"
        raise Unsupported(message, "choose another --backend: `parallax plugins` lists them")
    is_on_cpu = not MACHINE.has_nvidia_driver()
    if is_on_cpu:
        check_cpu(plan.model)
    if plan.layers is not None:
        for group, what in ((HYBRID, "recurrent states"), (SEEING, "inputs other than text")):
            if found & group:
                raise Unsupported(f"{family} has {what}, which a stage on vLLM does not support", HINT)
        check_plain_stage(plan, plan.layers, "vLLM")
        if is_on_cpu and plan.shape and any(layer.kind == "latent" for layer in plan.shape.layers):
            raise Unsupported(f"{family} {LATENTS}", HINT)
    return bool(found & (PLAIN | HYBRID | SEEING))


def check_cpu(folder: Path) -> None:
    """Refuse a model of `ON_CPU`; of other releases than that nothing is known.

    Raises:
        Unsupported: naming the architecture and the reason.
    """
    for name in read_config(folder).get("architectures") or ():
        if name in ON_CPU and find_installed() in {"", RELEASE}:
            message = f"vLLM {RELEASE} does not run {name} on a CPU: {ON_CPU[name]}"
            raise Unsupported(message, "use a machine with an NVIDIA GPU, or choose another --backend")
