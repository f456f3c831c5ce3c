"""The families: their architectures, adapters, blocks and parsers."""

from __future__ import annotations

from parallax_core.api import ModelSpec, Ref

REMEDY = "pip install -U parallax-models parallax-backend-torch"
PLAIN = "decoder:Decoder"
"""The blocks of families whose layers are those of Llama."""


def _offer(name: str, summary: str, architectures: str, blocks: str, **others: str) -> ModelSpec:
    """Return the offer of a family.

    Args:
        name: the family.
        summary: as `ModelSpec.summary`.
        architectures: the architectures, separated by spaces.
        blocks: the class of its blocks for ``torch``, in ``blocks``.
        others: ``parser`` as in `ModelSpec`; ``adapter``, the module of the adapter if it has another name.
    """
    return ModelSpec(
        name=name,
        summary=summary,
        architectures=tuple(architectures.split()),
        adapter=Ref(f"parallax_models.{others.get('adapter', name)}:ADAPTER"),
        blocks={"torch": Ref(f"parallax_models.blocks.{blocks}")},
        remedy=REMEDY,
        parser=others.get("parser", ""),
    )


FAMILIES = (
    _offer("llama", "Llama and SmolLM", "LlamaForCausalLM", PLAIN),
    _offer("llama4", "Llama 4, text", "Llama4ForCausalLM Llama4ForConditionalGeneration", "llama4:Llama4"),
    _offer("qwen2", "Qwen2 and Qwen2.5", "Qwen2ForCausalLM", "qwen2:Qwen2"),
    _offer("qwen3", "Qwen3, dense", "Qwen3ForCausalLM", "qwen2:Qwen2"),
    _offer("qwen3_moe", "Qwen3 with experts", "Qwen3MoeForCausalLM", "qwen3_moe:Qwen3Moe"),
    _offer("gemma3", "Gemma 3, text", "Gemma3ForCausalLM", "gemma3:Gemma3"),
    _offer(
        "gemma4",
        "Gemma 4, text",
        "Gemma4ForCausalLM Gemma4ForConditionalGeneration",
        "gemma4:Gemma4",
    ),
    _offer("gpt_oss", "GPT-OSS", "GptOssForCausalLM", "gpt_oss:GptOss", parser="harmony"),
    _offer("deepseek_v3", "DeepSeek-V3 and R1", "DeepseekV3ForCausalLM", "deepseek_v3:DeepseekV3"),
    _offer("deepseek_v32", "DeepSeek-V3.2", "DeepseekV32ForCausalLM", "deepseek_v32:DeepseekV32"),
    _offer("deepseek_v4", "DeepSeek-V4", "DeepseekV4ForCausalLM", "deepseek_v4:DeepseekV4", parser="deepseek_v4"),
    _offer("glm_moe_dsa", "GLM-5", "GlmMoeDsaForCausalLM", "deepseek_v32:GlmMoeDsa"),
    _offer("hy_v4", "Hy4", "HYV4ForCausalLM", "hy_v4:HyV4", parser="hy_v4"),
    _offer("qwen3_next", "Qwen3-Next", "Qwen3NextForCausalLM", "qwen3_next:Qwen3Next"),
    _offer(
        "qwen3_5",
        "Qwen3.5 to 3.8, text",
        "Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration",
        "qwen3_5:Qwen35",
    ),
    _offer("glm5_next", "GLM-5.3-Flash, text", "Glm5NextForConditionalGeneration", "glm5_next:Glm5Next"),
    _offer("kimi_linear", "Kimi Linear", "KimiLinearForCausalLM", "kimi_linear:KimiLinear"),
    _offer(
        "qwen4_exp",
        "Qwen4-Exp and Qwen3.8-Flash-Next, text",
        "Qwen4ExpForCausalLM Qwen4ExpForConditionalGeneration",
        "qwen4_exp:Qwen4Exp",
    ),
    _offer("qwen2_moe", "Qwen1.5 and Qwen2 with experts", "Qwen2MoeForCausalLM", "qwen2_moe:Qwen2Moe"),
    _offer("deepseek_v2", "DeepSeek-V2 and V2.5", "DeepseekV2ForCausalLM", "deepseek_v2:DeepseekV2"),
    _offer(
        "mistral",
        "Mistral, Ministral 3, and Mistral 3, text",
        "MistralForCausalLM Ministral3ForCausalLM Mistral3ForConditionalGeneration",
        "mistral:Mistral",
    ),
    _offer("mixtral", "Mixtral", "MixtralForCausalLM", "mistral:Mixtral"),
    _offer("granite", "Granite, dense", "GraniteForCausalLM", "granite:Granite", adapter="llama"),
    _offer(
        "granitemoehybrid",
        "Granite 4, with Mamba 2",
        "GraniteMoeHybridForCausalLM",
        "granite:GraniteHybrid",
    ),
    _offer("falcon_h1", "Falcon-H1", "FalconH1ForCausalLM", "falcon_h1:FalconH1"),
    _offer("lfm2", "LFM2, dense", "Lfm2ForCausalLM", "lfm2:Lfm2", parser="lfm2"),
    _offer(
        "step3p5",
        "Step 3.5 and Step 3.7, text",
        "Step3p5ForCausalLM Step3p7ForConditionalGeneration",
        "step3p5:Step3p5",
    ),
    _offer("nemotron_h", "Nemotron-H and Nemotron 3", "NemotronHForCausalLM", "nemotron_h:NemotronH"),
    _offer("lfm2_moe", "LFM2 with experts", "Lfm2MoeForCausalLM", "lfm2:Lfm2Moe", parser="lfm2"),
    _offer("olmo3", "OLMo 3", "Olmo3ForCausalLM", "olmo3:Olmo3", parser="olmo3"),
    _offer("smollm3", "SmolLM3", "SmolLM3ForCausalLM", "smollm3:SmolLM3"),
    _offer("seed_oss", "Seed-OSS", "SeedOssForCausalLM", PLAIN),
    _offer("glm4", "GLM-4, dense", "Glm4ForCausalLM", "glm4:Glm4"),
    _offer("glm4_moe", "GLM-4.5 to 4.7", "Glm4MoeForCausalLM", "glm4:Glm4Moe"),
    _offer(
        "glm4_moe_lite",
        "GLM-4.7 Flash",
        "Glm4MoeLiteForCausalLM",
        "deepseek_v3:DeepseekV3",
        adapter="deepseek_v3",
    ),
    _offer("minimax_m2", "MiniMax-M2", "MiniMaxM2ForCausalLM", "minimax_m2:MiniMaxM2"),
    _offer(
        "minimax_m3",
        "MiniMax-M3, text",
        "MiniMaxM3SparseForConditionalGeneration MiniMaxM3VLForCausalLM",
        "minimax_m3:MiniMaxM3",
        parser="minimax_m3",
    ),
    _offer("gemma2", "Gemma 2", "Gemma2ForCausalLM", "gemma3:Gemma2"),
    _offer("phi3", "Phi-3 and Phi-4", "Phi3ForCausalLM", "phi3:Phi3"),
    _offer("exaone4", "EXAONE 4", "Exaone4ForCausalLM", "smollm3:Exaone4"),
    _offer("hunyuan_v1", "Hunyuan 1", "HunYuanDenseV1ForCausalLM HunYuanMoEV1ForCausalLM", "hunyuan_v1:HunyuanV1"),
    _offer("ernie4_5", "ERNIE 4.5", "Ernie4_5ForCausalLM Ernie4_5_MoeForCausalLM", "ernie4_5:Ernie45"),
)
