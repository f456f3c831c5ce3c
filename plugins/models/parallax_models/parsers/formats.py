"""The formats of reasoning and tool calls, by the names that vLLM and SGLang users know."""

# ruff: noqa: RUF001 -- marks of DeepSeek have this character

from __future__ import annotations

from parallax_core.api import ParserSpec, Ref

THINK_TOKENS = ("<think>", "</think>")
THINK_END = "</think>\n\n"
SEED_THINK = ("<seed:think>", "</seed:think>")
M3_THINK = ("<mm:think>", "</mm:think>")
CALL_TOKENS = ("<tool_call>", "</tool_call>")
HARMONY_TOKENS = ("start", "end", "message", "channel", "constrain", "return", "call")
GEMMA_TOKENS = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>')
KIMI_TOKENS = ("tool_calls_section_begin", "tool_calls_section_end", "tool_call_begin", "tool_call_end")
DEEPSEEK_TOKENS = ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")


def _offer(name: str, summary: str, parser: str, marks: tuple[str, ...], tokens: tuple[str, ...] = ()) -> ParserSpec:
    return ParserSpec(
        name=name,
        summary=summary,
        factory=Ref(f"parallax_models.parsers.{parser}"),
        template_marks=marks,
        special_tokens=(*THINK_TOKENS, *tokens),
        reasoning_end=THINK_END,
        reasoning_marks=THINK_TOKENS,
    )


FORMATS = (
    _offer("hermes", "Hermes, Qwen2.5, Qwen3, Granite 4", "json_calls:HermesParser", CALL_TOKENS, CALL_TOKENS),
    _offer(
        "qwen3_coder",
        "Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5",
        "xml_calls:Qwen3CoderParser",
        (*CALL_TOKENS, "<function="),
        CALL_TOKENS,
    ),
    _offer(
        "glm4",
        "GLM-4.5 to 5",
        "xml_calls:Glm4Parser",
        (*CALL_TOKENS, "<arg_key>"),
        (*CALL_TOKENS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    _offer(
        "llama3_json",
        "Llama 3.1 to 3.3",
        "json_calls:Llama3Parser",
        ("<|start_header_id|>", '{"name": function name, "parameters":'),
        ("<|python_tag|>",),
    ),
    ParserSpec(
        name="mistral",
        summary="Mistral and Magistral",
        factory=Ref("parallax_models.parsers.json_calls:MistralParser"),
        template_marks=("[TOOL_CALLS]", "[/INST]"),
        special_tokens=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[THINK]", "[/THINK]"),
        reasoning_end="[/THINK]",
        reasoning_marks=("[THINK]", "[/THINK]"),
    ),
    _offer(
        "deepseek",
        "DeepSeek V3, R1 and V3.1",
        "marked_calls:DeepseekParser",
        ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"),
        tuple(f"<｜tool▁{name}｜>" for name in DEEPSEEK_TOKENS),
    ),
    _offer(
        "kimi_k2",
        "Kimi K2",
        "marked_calls:KimiParser",
        ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        tuple(f"<|{name}|>" for name in (*KIMI_TOKENS, "tool_call_argument_begin")),
    ),
    _offer(
        "minimax",
        "MiniMax M2",
        "xml_calls:MinimaxParser",
        ("<minimax:tool_call>", "<invoke name="),
        ("<minimax:tool_call>", "</minimax:tool_call>"),
    ),
    _offer(
        "deepseek_v32",
        "DeepSeek V3.2, and later models that write DSML",
        "dsml_calls:DsmlParser",
        ("｜DSML｜", "invoke name="),
    ),
    _offer(
        "deepseek_v4",
        "DeepSeek-V4",
        "dsml_calls:DeepseekV4Parser",
        ("｜DSML｜", "invoke name=", "tool_calls>"),
    ),
    ParserSpec(
        name="minimax_m3",
        summary="MiniMax M3",
        factory=Ref("parallax_models.parsers.nested_calls:MinimaxM3Parser"),
        template_marks=("]<]minimax[>[", "<invoke name="),
        special_tokens=M3_THINK,
        reasoning_end="</mm:think>",
        reasoning_marks=M3_THINK,
    ),
    ParserSpec(
        name="hy_v4",
        summary="Hy4",
        factory=Ref("parallax_models.parsers.suffixed_calls:HyV4Parser"),
        template_marks=("<tool_calls", "<tool_call", "<arg_key", "<arg_value"),
        special_tokens=THINK_TOKENS,
        may_force_calls=False,
    ),
    _offer("nemotron", "Nemotron-H and Nemotron Nano 2", "json_lists:NemotronParser", ("<TOOLCALL>", "</TOOLCALL>")),
    _offer(
        "phi4_mini",
        "Phi-4-mini",
        "json_lists:Phi4MiniParser",
        ("<|tool|>", "<|/tool|>"),
        ("<|tool_call|>", "<|/tool_call|>"),
    ),
    _offer("hunyuan", "Hunyuan 1", "json_lists:HunyuanParser", ("<tool_calls>", "</tool_calls>", "<answer>")),
    _offer(
        "llama4_pythonic",
        "Llama 4",
        "python_calls:Llama4Parser",
        ("<|header_start|>", "func_name1("),
        ("<|python_start|>", "<|python_end|>"),
    ),
    _offer(
        "llama4_json",
        "Llama 4, by its own template",
        "json_calls:Llama4JsonParser",
        ("<|header_start|>", '{"name": function name, "parameters":'),
        ("<|python_start|>", "<|python_end|>"),
    ),
    ParserSpec(
        name="gemma4",
        summary="Gemma 4",
        factory=Ref("parallax_models.parsers.python_calls:Gemma4Parser"),
        template_marks=("<|tool_call>", "<tool_call|>"),
        special_tokens=GEMMA_TOKENS,
        reasoning_end="<channel|>",
        reasoning_marks=("<|channel>", "<channel|>"),
    ),
    _offer("minimax_m1", "MiniMax M1", "json_calls:MinimaxM1Parser", ("<tool_calls>", "</tool_calls>")),
    ParserSpec(
        name="seed_oss",
        summary="Seed-OSS",
        factory=Ref("parallax_models.parsers.xml_calls:SeedParser"),
        template_marks=("<seed:tool_call>", "<function="),
        special_tokens=(*SEED_THINK, "<seed:tool_call>", "</seed:tool_call>"),
        reasoning_end="</seed:think>",
        reasoning_marks=SEED_THINK,
    ),
    _offer(
        "lfm2",
        "LFM2",
        "python_calls:Lfm2Parser",
        ("<|tool_list_start|>",),
        ("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    _offer("olmo3", "OLMo 3", "python_calls:Olmo3Parser", ("<function_calls>", "<functions>")),
    _offer(
        "granite",
        "Granite 3",
        "json_calls:GraniteParser",
        ("<|tool_call|>", "<|start_of_role|>"),
        ("<|tool_call|>", *CALL_TOKENS),
    ),
    ParserSpec(
        name="harmony",
        summary="gpt-oss",
        factory=Ref("parallax_models.parsers.harmony:HarmonyParser"),
        template_marks=("<|channel|>", "<|message|>"),
        special_tokens=tuple(f"<|{name}|>" for name in HARMONY_TOKENS),
        reasoning_end="<|end|><|start|>assistant<|channel|>final<|message|>",
        reasoning_marks=("<|channel|>analysis<|message|>", "<|message|>"),  # up to the content of the next channel
        may_force_calls=False,
    ),
    ParserSpec(
        name="think",
        summary="reasoning between <think> and </think>, no tool calls",
        factory=Ref("parallax_models.parsers.thinking:ThinkParser"),
        finds_calls=False,
        template_marks=("</think>",),
        special_tokens=THINK_TOKENS,
        reasoning_end=THINK_END,
        reasoning_marks=THINK_TOKENS,
    ),
)
