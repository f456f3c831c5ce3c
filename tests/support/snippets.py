"""Reads the code blocks of the documentation, and says why a test cannot run some of their commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    path
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "plugins/*/README.md")
    for path in sorted(ROOT.glob(pattern))
]
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ ", re.MULTILINE)
HEREDOC = re.compile(r"<<(\w+)\n.*?^\1$", re.MULTILINE | re.DOTALL)
TYPED = {"sh", "python"}
SHOWN = {"", "text", "toml", "json", "diff"}
"""What programs print, and files: nobody types them at a prompt."""

REASONS = {
    "environment": "makes an environment of its own, or belongs into one",
    "service": "runs until it is ended, needs a server of its own, or takes long",
    "engine": "needs an engine of several gigabytes, or a GPU",
    "hub": "needs a model of a hub",
    "machine": "needs another machine, its address, or a value that it has printed",
    "root": "needs root, and changes the system",
    "plugin": "needs a package that is not part of the development environment, or a folder of the reader's",
    "elsewhere": "is run by a test of its own",
    "interface": "shows what to implement",
}
"""Why a snippet is not run here. A snippet without one of these runs."""

ELSEWHERE = {
    "docs/reference/hooks.md": "tests/rules/test_hooks.py",
    "docs/reference/testing.md": "tests/rules/test_kits.py",
    "docs/reference/contracts.md": "tests/rules/test_contracts.py",
    "docs/tutorials/add-a-family.md": "tests/e2e/test_tutorial.py",
    "docs/tutorials/write-a-backend.md": "tests/e2e/test_tutorial.py",
    **{
        f"docs/examples/{name}/README.md": "tests/e2e/test_examples.py"
        for name in (
            "backend-numpy",
            "deployment-command",
            "dialect-ask",
            "model-olmo2",
            "policy-cached",
            "policy-rush",
            "service-clock",
            "transport-tcp",
        )
    },
}
"""By page: the test that runs its snippets."""
PYTHON_PAGES = {
    "interface": {
        "docs/explanation/design.md",
        "docs/how-to/write-a-command.md",
        "docs/how-to/write-a-model-adapter.md",
    },
    "plugin": {"docs/how-to/ollama.md"},
}
"""The pages whose Python is not run, by reason."""
SERVICES = {"serve", "run", "worker", "relay", "rendezvous", "promote", "drain", "bench", "--watch", "--"}
"""Commands that run until they are ended, or start one that does or need one beside them, and options that do so."""
LONG = re.compile(r"parallax join|nodes remove|long story|deploy\.deployment")
"""The same for what takes long, or needs machines that joined."""
ENGINES = re.compile(r"\b(vllm|sglang)\b")
HUB = re.compile(r"\b(Qwen|zai-org|org)/")
OTHERS = re.compile(
    r"\b(10\.0\.0|203\.0\.113|198\.51\.100|192\.168\.1)\.\d+|\b(CODE|KEY|NAME|PUBLIC_KEY|MODEL|CODE_OF_A_SERVER)\b|plx1|--network"
    r"|suggest --\w+ \w+\.toml"
)
"""Addresses, files and placeholders that stand for what the reader has."""
MAKERS = {"make", "pip", ".", "pytest", "cd"}
"""Programs that make an environment, or belong into one that was made."""
ROOTS = ("sudo ", "docker ", "parallax()")


@dataclass(frozen=True, slots=True)
class Snippet:
    """A block that a reader types."""

    page: str
    section: int
    """The number of its section on the page: each begins on a machine without anything."""
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        """Return where it is."""
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The commands of a shell block, without comments."""
        joined = HEREDOC.sub(r"<<\1", self.text).replace("\\\n", " ")
        return [each for each in _split_commands(joined) if each]


def list_typed(snippet: Snippet) -> list[str]:
    """Return the commands of a snippet; code in Python is one."""
    return snippet.commands if snippet.language == "sh" else [snippet.text]


def list_snippets() -> Iterator[Snippet]:
    """Yield the blocks that a reader types, page by page.

    Raises:
        ValueError: if a block is in a language that is neither typed nor shown, or looks typed and says no language.
    """
    for path in PAGES:
        page, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            indent, language, block = match.groups()
            line = text.count("\n", 0, match.start()) + 1
            if language in TYPED:
                section = len(HEADING.findall(text, 0, match.start()))
                yield Snippet(page, section, line, language, re.sub(rf"^{indent}", "", block, flags=re.MULTILINE))
            elif language not in SHOWN or (not language and block.startswith(("parallax ", "pip ", "make ", "curl "))):
                raise ValueError(f"{page}:{line} has a block in {language or 'no language'}: say sh, python or text")


def find_obstacle(snippet: Snippet, command: str) -> str | None:
    """Return why a command of a snippet, or a snippet in Python, is not run here; None: it is."""
    words = (split_words(command) if snippet.language == "sh" else []) or [""]
    makes = words[0] in MAKERS or words[:3] == ["python3", "-m", "venv"]
    asked = {*words[1:3], *(word for word in words if word.startswith("-"))} if words[0] == "parallax" else set()
    runs_on = not SERVICES.isdisjoint(asked) or words[-1] == "&"
    calls_other = words[0] == "curl" and "127.0.0.1:8000" not in command
    others = {
        reason for reason, pages in PYTHON_PAGES.items() if snippet.language == "python" and snippet.page in pages
    }
    found = {
        "interface": "interface" in others,
        "plugin": "plugin" in others,
        "elsewhere": snippet.page in ELSEWHERE,
        "root": command.startswith(ROOTS),
        "environment": makes,
        "engine": ENGINES.search(command),
        "hub": HUB.search(command),
        "machine": OTHERS.search(command),
        "service": runs_on or calls_other or LONG.search(command),
    }
    return next((reason for reason, holds in found.items() if holds), None)


def split_words(command: str) -> list[str]:
    """Return the words of a command: no comments, settings before it, path of its program, and what follows ``||``."""
    words = shlex.split(command, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        del words[0]
    if "||" in words:
        del words[words.index("||") :]
    return [words[0].removeprefix(".venv/bin/"), *words[1:]] if words else []


def _split_commands(text: str) -> Sequence[str]:
    """Return the lines of a shell block, those within quotes as one."""
    found, rest = [], ""
    for line in text.splitlines():
        rest = f"{rest}\n{line}" if rest else line
        try:
            shlex.split(rest, comments=True)
        except ValueError:  # a quotation goes on
            continue
        found.append("" if rest.lstrip().startswith("#") else rest.strip())
        rest = ""
    if rest:
        raise ValueError(f"a quotation does not end: {rest}")
    return found
