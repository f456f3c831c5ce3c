"""The families that vLLM has, and those that its own stages cannot hold. Imports no vLLM.

Of vLLM 0.32.0: the registry of its models, and what ``supports_pp``, ``is_hybrid`` and ``supports_multimodal`` of
``vllm.model_executor.models.interfaces`` say of their classes; where a class needs torchvision, its base classes.
"""

from __future__ import annotations

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
HINT = "serve the model whole: --backend vllm without --stages and --layers"


def check_family(plan: StagePlan) -> bool:
    """Tell whether vLLM runs the layers of a plan; see `parallax_core.api.BackendSpec.check`."""
    names = [str(name) for name in read_config(plan.model).get("architectures") or ()]
    family, found = ", ".join(names), set(names)
    if found and found <= ABSENT:
        message = f"vLLM {RELEASE} has no model for the architecture {family}"
        raise Unsupported(message, "choose another --backend: `parallax plugins` lists them")
    if plan.layers is not None:
        for group, what in ((HYBRID, "recurrent states"), (SEEING, "inputs other than text")):
            if found & group:
                raise Unsupported(f"{family} has {what}, which a stage on vLLM does not support", HINT)
        check_plain_stage(plan, plan.layers, "vLLM")
    return bool(found & (PLAIN | HYBRID | SEEING))
