"""The parser of each family is found without its name, and reads what the templates of the family write."""

# ruff: noqa: RUF001 -- marks of DeepSeek have this character

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parallax_core.api import AnswerInfo, Content, Reasoning, ToolCall
from parallax_core.models.chat_template import ChatTemplate
from parallax_core.models.generation_config import read_generation
from parallax_core.models.output_parser import find_parser
from parallax_core.plugins.host import PluginHost
from parallax_core.testing.parser import join_pieces

CITY = '{"city": "Bonn"}'
THINK = "<think>\nwhy\n</think>\n\n"
SCHEMA = '{"type": "object", "properties": {"city": {"type": "string"}}}'
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
HERMES = f'<tool_call>\n{{"name": "look_up", "arguments": {CITY}}}\n</tool_call>'
CODER = "<tool_call>\n<function=look_up>\n<parameter=city>\nBonn\n</parameter>\n</function>\n</tool_call>"
DEEPSEEK = (
    f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look_up<｜tool▁sep｜>{CITY}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.look_up:0<|tool_call_argument_begin|>"
    f"{CITY}<|tool_call_end|><|tool_calls_section_end|>"
)
MINIMAX = (
    '<minimax:tool_call>\n<invoke name="look_up">\n<parameter name="city">Bonn</parameter>\n</invoke>\n'
    "</minimax:tool_call>"
)
HARMONY = f"<|channel|>commentary to=functions.look_up <|constrain|>json<|message|>{CITY}<|call|>"
GLM = "<tool_call>look_up\n<arg_key>city</arg_key>\n<arg_value>Bonn</arg_value>\n</tool_call>"
MISTRAL = f"[TOOL_CALLS]look_up[ARGS]{CITY}"
LLAMA3 = f'{{"name": "look_up", "parameters": {CITY}}}'
LFM2 = '<|tool_call_start|>[look_up(city="Bonn")]<|tool_call_end|>'
OLMO3 = '<function_calls>look_up(city="Bonn")</function_calls>'
DSML = (
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="look_up">\n<｜DSML｜parameter name="city" string="true">Bonn'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"
)
M3 = "".join(
    f"]<]minimax[>[{part}"
    for part in ("<tool_call>", '<invoke name="look_up">', "<city>Bonn", "</city>", "</invoke>", "</tool_call>")
)
HY4 = (
    "<tool_calls:6124c78e><tool_call:6124c78e>look_up<arg_key:6124c78e>city</arg_key:6124c78e>"
    "<arg_value:6124c78e>Bonn</arg_value:6124c78e></tool_call:6124c78e></tool_calls:6124c78e>"
)
LISTED = f'[{{"name": "look_up", "arguments": {CITY}}}]'
TOOLCALL = f"<TOOLCALL>{LISTED}</TOOLCALL>"
HUNYUAN = f"<answer>\n<tool_calls>{LISTED}</tool_calls>\n</answer>"
GEMMA4 = '<|tool_call>call:look_up{city:<|"|>Bonn<|"|>}<tool_call|>'
SEED = CODER.replace("tool_call", "seed:tool_call")
CASES: dict[str, tuple[str, str, str, str]] = {
    "qwen3": ("Qwen3ForCausalLM", HERMES, "hermes", THINK),
    "qwen3.5": ("Qwen3_5ForConditionalGeneration", CODER, "qwen3_coder", THINK),
    "gpt-oss": ("GptOssForCausalLM", HARMONY, "harmony", "<|channel|>analysis<|message|>why<|end|><|start|>assistant"),
    "glm-4.6": ("Glm4MoeForCausalLM", GLM, "glm4", THINK),
    "minimax-m2": ("MiniMaxM2ForCausalLM", MINIMAX, "minimax", THINK),
    "deepseek-v3.1": ("DeepseekV3ForCausalLM", DEEPSEEK, "deepseek", THINK),
    "kimi-k2": ("DeepseekV3ForCausalLM", KIMI, "kimi_k2", ""),
    "ministral-3": ("Mistral3ForConditionalGeneration", f"{MISTRAL}[/INST]", "mistral", "[THINK]why[/THINK]"),
    "nemotron-3": ("NemotronHForCausalLM", CODER, "qwen3_coder", THINK),
    "granite-4": ("GraniteMoeHybridForCausalLM", HERMES, "hermes", ""),
    "lfm2": ("Lfm2ForCausalLM", LFM2, "lfm2", ""),
    "olmo-3": ("Olmo3ForCausalLM", OLMO3, "olmo3", THINK),
    "smollm3": ("SmolLM3ForCausalLM", HERMES, "hermes", THINK),
    "seed-oss": ("SeedOssForCausalLM", SEED, "seed_oss", "<seed:think>why</seed:think>"),
    "step-3.5": ("Step3p5ForCausalLM", CODER, "qwen3_coder", THINK),
    "llama-3.1": (
        "LlamaForCausalLM",
        f'<|start_header_id|>{{"name": function name, "parameters": dictionary}}<|eot_id|>{LLAMA3}',
        "llama3_json",
        "",
    ),
    "deepseek-v3.2": ("DeepseekV32ForCausalLM", DSML, "deepseek_v32", THINK),
    "deepseek-v4": (
        "DeepseekV4ForCausalLM",
        DSML.replace("function_calls", "tool_calls"),
        "deepseek_v4",
        THINK,
    ),
    "minimax-m3": ("MiniMaxM3SparseForConditionalGeneration", M3, "minimax_m3", "<mm:think>why</mm:think>"),
    "hy4": ("HYV4ForCausalLM", HY4, "hy_v4", THINK.replace("think", "think:6124c78e")),
    "nemotron-nano-2": ("NemotronHForCausalLM", TOOLCALL, "nemotron", THINK),
    "hunyuan-a13b": ("HunYuanMoEV1ForCausalLM", HUNYUAN, "hunyuan", THINK),
    "gemma-4": ("Gemma4ForConditionalGeneration", GEMMA4, "gemma4", "<|channel>thought\nwhy\n<channel|>"),
    "phi-4-mini": ("Phi3ForCausalLM", f"<|tool|><|/tool|><|eot_id|>functools{LISTED}", "phi4_mini", ""),
    "llama-4": (
        "Llama4ForCausalLM",
        '<|header_start|>[func_name1(name=value)]<|eot_id|>[look_up(city="Bonn")]',
        "llama4_pythonic",
        "",
    ),
    "llama-4-own": (
        "Llama4ForConditionalGeneration",
        (
            '<|header_start|>{"name": function name, "parameters": dictionary}<|eot_id|>'
            f"<|python_start|><|python_end|>{LLAMA3}"
        ),
        "llama4_json",
        "",
    ),
    "lfm2.5-moe": ("Lfm2MoeForCausalLM", LFM2, "lfm2", THINK),
    "glm-5": ("GlmMoeDsaForCausalLM", GLM.replace("\n", ""), "glm4", THINK),
    "glm-5.3": ("Glm5NextForConditionalGeneration", GLM.replace("\n", ""), "glm4", THINK),
    "qwen3.8-flash-next": ("Qwen4ExpForConditionalGeneration", CODER, "qwen3_coder", THINK),
    "qwen3-next": ("Qwen3NextForCausalLM", HERMES, "hermes", ""),
    "granite-3": ("GraniteForCausalLM", f"<|start_of_role|><|eot_id|><|tool_call|>{LISTED}", "granite", ""),
    "ernie-4.5": ("Ernie4_5_MoeForCausalLM", HERMES, "hermes", THINK),
    "exaone-4": ("Exaone4ForCausalLM", HERMES, "hermes", THINK),
}
"""By model: its architecture, what its template writes for a call, its parser, and how it writes reasoning."""


@pytest.fixture(scope="module")
def host() -> PluginHost:
    return PluginHost.prepare()


def make_template(call: str) -> str:
    """Return a template that writes a call as the published one does, with the marks as text of the template."""
    quoted = "{{ '" + call.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "' }}"
    turns = "{% for turn in messages %}{% if turn.tool_calls %}" + quoted + "{% else %}{{ turn.content }}{% endif %}"
    return f"{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}{turns}{{% endfor %}}"


@pytest.mark.parametrize("name", CASES)
def test_template_of_a_family_chooses_its_parser_which_reads_what_it_renders(name: str, host: PluginHost) -> None:
    architecture, call, wanted, thoughts = CASES[name]
    source = make_template(call)
    found = find_parser(host, {"architectures": [architecture]}, source)
    assert found is not None
    assert found.spec.name == wanted
    function = {"name": "look_up", "arguments": {"city": "Bonn"}}
    turns: list[dict[str, Any]] = [{"role": "assistant", "content": "", "tool_calls": [{"function": function}]}]
    rendered = ChatTemplate(source, {}, 10_000).render(turns, None, tools=TOOLS)
    answer = rendered[rendered.index(call) :].rpartition("<|eot_id|>")[2].removesuffix("[/INST]")
    parser: Any = found.make()
    parser.begin(AnswerInfo(tools={"look_up": SCHEMA}))
    pieces = [piece for letter in thoughts + answer for piece in parser.feed(letter)]
    kept = join_pieces([*pieces, *parser.finish()])
    calls = [(piece.name, piece.arguments) for piece in kept if isinstance(piece, ToolCall)]
    assert calls == [("look_up", CITY)]
    assert [piece.text for piece in kept if isinstance(piece, Reasoning)] == (["why"] if thoughts else [])
    assert not [piece for piece in kept if isinstance(piece, Content) and piece.text.strip()]


def test_template_may_put_its_mark_in_a_variable(host: PluginHost) -> None:
    source = "{% set token = '｜DSML｜' %}{{ '<' + token + 'invoke name=' }}"
    found = find_parser(host, {"architectures": ["DeepseekV32ForCausalLM"]}, source)
    assert found is not None
    assert found.spec.name == "deepseek_v32"


@pytest.mark.parametrize("architecture", ["Gemma3ForCausalLM", "Gemma2ForCausalLM"])
def test_template_without_marks_has_no_parser(architecture: str, host: PluginHost) -> None:
    template = "{% for turn in messages %}<start_of_turn>{{ turn.role }}\n{{ turn.content }}<end_of_turn>{% endfor %}"
    assert find_parser(host, {"architectures": [architecture]}, template) is None


def test_defaults_of_a_family_come_from_its_generation_config(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(
        '{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [5, 7]}'
    )
    found = read_generation(tmp_path)
    assert found.defaults.describe() == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    assert found.eos_token_id == [5, 7]
