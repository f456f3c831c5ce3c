"""Renders the chat templates of a folder here and by transformers, and counts the differences.

    python -m benchmarks.chat_templates FOLDER [--out FILE]

Templates are files called ``*.jinja``, such as those in the examples of vLLM and of llama.cpp.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from benchmarks.record import describe_run, write_report
from parallax_core.base.errors import ParallaxError
from parallax_core.models.chat_template import ChatTemplate
from tests.support.conversations import CONVERSATIONS

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
LONGEST = 2**24


def main() -> None:
    """Compare each template once for each conversation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    texts = {path.read_text(encoding="utf-8"): path.name for path in sorted(options.folder.rglob("*.jinja"))}
    counts: Counter[str] = Counter()
    different = []
    for source, name in texts.items():
        for number, (turns, tools) in enumerate(CONVERSATIONS):
            ours, theirs = render(source, turns, tools), render_reference(source, turns, tools)
            counts[outcome := judge(ours, theirs)] += 1
            if outcome == "different":
                different.append({"template": name, "conversation": number, "ours": ours, "theirs": theirs})
    digests = sorted(hashlib.sha256(source.encode()).hexdigest()[:16] for source in texts)
    report = {"templates": len(texts), "renderings": dict(counts), "differences": different, "digests": digests}
    command = ["benchmarks.chat_templates", options.folder.name]
    write_report(options.out, {**describe_run(command, ["transformers", "jinja2"]), **report})
    for each in different:
        sys.stdout.write(f"{each}\n")
    sys.stdout.write(f"templates={len(texts)} {dict(counts)}\n")


def judge(ours: str | None, theirs: str | None) -> str:
    """Return how two prompts compare; None: refused."""
    if ours == theirs:
        return "same" if ours is not None else "refused by both"
    return "different" if theirs is not None else "refused by transformers alone"


def render(source: str, turns: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str | None:
    """Return our prompt."""
    try:
        template = ChatTemplate(source, SPECIAL, LONGEST)
        if tools and not template.uses("tools"):
            tools = []  # refused here, and left out silently there
        return template.render(turns, tools=tools)
    except ParallaxError:
        return None


def render_reference(source: str, turns: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str | None:
    """Return the prompt of transformers."""
    try:
        rendered, _ = render_jinja_template(
            [turns], tools or None, chat_template=source, add_generation_prompt=True, **SPECIAL
        )
    except Exception:  # noqa: BLE001 -- templates raise what they like
        return None
    text: str = rendered[0]
    return text


if __name__ == "__main__":
    main()
