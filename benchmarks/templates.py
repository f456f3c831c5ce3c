"""Chooses the parser of each published chat template without its name, and has it read what the template writes.

The templates are those of the models' authors, as distributions on PyPI carry them; they are fetched, not kept here. A
model is asked something, with a tool, and answers with reasoning and a call, as its template writes an earlier answer.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import describe_run, write_report
from parallax_core.api import AnswerInfo, Content, Reasoning, ToolCall
from parallax_core.models.chat_template import Arguments, ChatTemplate, PromptEnding
from parallax_core.models.output_parser import OutputParser, find_parser
from parallax_core.plugins.host import PluginHost
from parallax_core.testing.parser import join_pieces

LLAMA, TRL, AXOLOTL = "llama-cpp-python==0.3.36", "trl==1.16.0", "axolotl==0.19.0"
FOLDERS = {
    LLAMA: "vendor/llama.cpp/models/templates",
    TRL: "trl/chat_templates",
    AXOLOTL: "axolotl/utils/chat_templates/templates",
}
"""By distribution: the folder of its templates; the first is an archive of sources, the others are wheels."""
TEMPLATES: Mapping[str, Mapping[str, str]] = {
    LLAMA: {
        "Qwen-Qwen2.5-7B-Instruct": "Qwen2ForCausalLM",
        "Qwen-QwQ-32B": "Qwen2ForCausalLM",
        "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "Qwen2ForCausalLM",
        "Qwen-Qwen3-0.6B": "Qwen3ForCausalLM",
        "Qwen3-Coder": "Qwen3MoeForCausalLM",
        "Qwen3.5-4B": "Qwen3_5ForConditionalGeneration",
        "openai-gpt-oss-120b": "GptOssForCausalLM",
        "GLM-4.6": "Glm4MoeForCausalLM",
        "GLM-4.7-Flash": "Glm4MoeLiteForCausalLM",
        "deepseek-ai-DeepSeek-V3.1": "DeepseekV3ForCausalLM",
        "moonshotai-Kimi-K2": "DeepseekV3ForCausalLM",
        "deepseek-ai-DeepSeek-V3.2": "DeepseekV32ForCausalLM",
        "deepseek-ai-DeepSeek-V4": "DeepseekV4ForCausalLM",
        "MiniMax-M2": "MiniMaxM2ForCausalLM",
        "MiniMax-M3": "MiniMaxM3SparseForConditionalGeneration",
        "google-gemma-2-2b-it": "Gemma2ForCausalLM",
        "google-gemma-4-31B-it": "Gemma4ForConditionalGeneration",
        "mistralai-Ministral-3-14B-Reasoning-2512": "Mistral3ForConditionalGeneration",
        "Mistral-Small-3.2-24B-Instruct-2506": "Mistral3ForConditionalGeneration",
        "mistralai-Mistral-Nemo-Instruct-2407": "MistralForCausalLM",
        "NVIDIA-Nemotron-Nano-v2": "NemotronHForCausalLM",
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "NemotronHForCausalLM",
        "ibm-granite-granite-3.3-2B-Instruct": "GraniteForCausalLM",
        "ibm-granite-granite-4.0": "GraniteMoeHybridForCausalLM",
        "LFM2-8B-A1B": "Lfm2MoeForCausalLM",
        "LFM2.5-8B-A1B": "Lfm2MoeForCausalLM",
        "ByteDance-Seed-OSS": "SeedOssForCausalLM",
        "StepFun3.5-Flash": "Step3p5ForCausalLM",
        "meta-llama-Llama-3.1-8B-Instruct": "LlamaForCausalLM",
        "meta-llama-Llama-3.3-70B-Instruct": "LlamaForCausalLM",
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "LlamaForCausalLM",
        "microsoft-Phi-3.5-mini-instruct": "Phi3ForCausalLM",
    },
    TRL: {
        "qwen3_instruct_2507": "Qwen3NextForCausalLM",
        "qwen3_5_think": "Qwen3_5MoeForConditionalGeneration",
        "qwen3_6": "Qwen3_5MoeForConditionalGeneration",
        "qwen3_8": "Qwen4ExpForConditionalGeneration",
        "gptoss": "GptOssForCausalLM",
        "glm4moe": "Glm4MoeForCausalLM",
        "deepseekv3": "DeepseekV3ForCausalLM",
        "gemma3": "Gemma3ForCausalLM",
        "gemma4_v5": "Gemma4ForConditionalGeneration",
        "nemotron_3_super": "NemotronHForCausalLM",
        "nemotron_3_ultra": "NemotronHForCausalLM",
        "lfm2_v2": "Lfm2ForCausalLM",
        "lfm2_2_5_v2": "Lfm2ForCausalLM",
    },
    AXOLOTL: {
        "llama4": "Llama4ForConditionalGeneration",
        "exaone4": "Exaone4ForCausalLM",
        "falcon_h1": "FalconH1ForCausalLM",
        "deepseek_v2": "DeepseekV2ForCausalLM",
    },
}
"""By distribution and template: the architecture of the models that it is published with."""
VARIABLES = {"bos_token": "<bos>", "eos_token": "<eos>"}
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "parts": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city"],
}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Tells it.", "parameters": SCHEMA}}
GIVEN = {"city": "Bonn", "days": 3, "exact": True, "parts": ["sun", "rain"]}
WHY, SAID = "I should look it up.", "CONTENT"
ASKED = {"role": "user", "content": "What will the weather be in Bonn?"}
THOUGHTS = ("<think", "[THINK]")
"""How prompts that open the reasoning end."""
PAST = PromptEnding(opens_answer=False)
MOST_CHARACTERS = 1_000_000
Turn = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Example:
    """An answer as a template writes it."""

    prompt_end: str
    answer: str


def fetch(distribution: str, folder: Path) -> dict[str, str]:
    """Return the templates of a distribution by their names, which pip downloads unless it has."""
    kind = "--no-binary" if distribution == LLAMA else "--only-binary"
    target = folder / distribution
    if not target.is_dir():
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            kind,
            ":all:",
            "--dest",
            str(target),
        ]
        subprocess.run([*command, distribution], check=True)
    [path] = target.iterdir()
    read = read_archive if path.suffix == ".gz" else read_wheel
    found = read(path, FOLDERS[distribution])
    return {Path(name).stem: text.decode() for name, text in found.items()}


def read_archive(path: Path, folder: str) -> dict[str, bytes]:
    """Return the files of a folder of an archive of sources."""
    with tarfile.open(path) as archive:
        names = [name for name in archive.getnames() if f"/{folder}/" in name]
        files = {name: archive.extractfile(name) for name in names if name.endswith(".jinja")}
        return {name: file.read() for name, file in files.items() if file}


def read_wheel(path: Path, folder: str) -> dict[str, bytes]:
    """Return the files of a folder of a wheel."""
    with zipfile.ZipFile(path) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist() if name.startswith(folder)}


def write_example(source: str) -> Example | None:
    """Return an answer with a call; None: the template writes none."""
    template = ChatTemplate(source, VARIABLES, MOST_CHARACTERS)
    if not template.uses("tools"):
        return None
    function = {"name": "get_weather", "arguments": Arguments(GIVEN)}
    call: Turn = {"id": "abcdefghi", "type": "function", "function": function}
    turn: Turn = {"role": "assistant", "content": "", "reasoning_content": WHY, "tool_calls": [call]}
    prompt = template.render([ASKED], tools=[TOOL])
    plain = template.render([ASKED, {"role": "assistant", "content": SAID}], ending=PAST, tools=[TOOL])
    full = template.render([ASKED, turn], ending=PAST, tools=[TOOL])
    start = next(place for place in range(len(full) + 1) if full[: place + 1] != prompt[: place + 1])
    if prompt[start:].strip():  # the prompt opens reasoning that the template leaves out of an earlier answer
        start = max((place for mark in THOUGHTS if (place := prompt.rfind(mark, 0, start + 10)) >= 0), default=start)
    answer = full[start:].removesuffix(plain.rpartition(SAID)[2])
    return Example(full[:start][-256:], answer) if "Bonn" in answer else None


def read_example(parser: OutputParser, example: Example) -> dict[str, Any]:
    """Return what a parser finds in an answer, given letter by letter."""
    made: Any = parser.make()
    made.begin(AnswerInfo(prompt_end=example.prompt_end, tools={"get_weather": json.dumps(SCHEMA)}))
    pieces = join_pieces([*(piece for letter in example.answer for piece in made.feed(letter)), *made.finish()])
    calls = [(piece.name, json.loads(piece.arguments)) for piece in pieces if isinstance(piece, ToolCall)]
    thoughts = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning)).strip()
    rest = "".join(piece.text for piece in pieces if isinstance(piece, Content)).strip()
    is_right = calls == [("get_weather", GIVEN)] and thoughts in {"", WHY} and (WHY in example.answer) == bool(thoughts)
    return {"calls": is_right, "reasoning": bool(thoughts), "beside": rest}


def try_template(host: PluginHost, source: str, architecture: str) -> dict[str, Any]:
    """Return what was found of a template."""
    parser = find_parser(host, {"architectures": [architecture]}, source)
    found: dict[str, Any] = {"architecture": architecture, "sha256": hashlib.sha256(source.encode()).hexdigest()}
    found["parser"] = parser.spec.name if parser else None
    example = write_example(source)
    if example is None:
        return found | {"passed": True, "writes_calls": False}
    read = read_example(parser, example) if parser else {"calls": False}
    return found | {"passed": read["calls"], "writes_calls": True, **read}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Have parsers read what published chat templates write.")
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    parser.add_argument("--folder", type=Path, default=Path("build/templates"), help="where downloads are kept")
    options = parser.parse_args(arguments)
    host, done = PluginHost.prepare(), dict[str, Any]()
    for distribution, wanted in TEMPLATES.items():
        sources = fetch(distribution, options.folder)
        for name, architecture in wanted.items():
            found = done[f"{distribution}/{name}"] = try_template(host, sources[name], architecture)
            print(name, "pass" if found["passed"] else "FAIL", found["parser"], found.get("beside", ""), flush=True)
    if options.out:
        write_report(options.out, describe_run(["benchmarks.templates"]) | {"templates": done})
    return 0 if all(found["passed"] for found in done.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
