"""Makes the README the page of the documentation by which one starts."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

README = Path(__file__).parent.parent / "README.md"
LINK = re.compile(r"\[([^\]]+)\]\((?!\w+://)([^)]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page: links into the documentation are relative to it, others become their text."""
    text = "---\ntitle: Start\n---\n" + LINK.sub(_follow, README.read_text(encoding="utf-8"))
    files.append(File.generated(config, "start.md", content=text))
    return files


def _follow(link: re.Match[str]) -> str:
    text, target = link.groups()
    return f"[{text}]({target.removeprefix('docs/')})" if re.match(r"docs/.*\.md", target) else text
