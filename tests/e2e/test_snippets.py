"""What a reader of the documentation would type: each snippet runs here as it stands there, or says why it cannot.

All are checked for their form: commands of this project by their options and arguments, others by what they name.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from packaging.requirements import Requirement

from parallax_client import client, server_url
from parallax_cluster.config.home import cluster_file
from parallax_cluster.deploy.join_codes import get_method
from parallax_cluster.node.membership.code_store import CodeStore
from parallax_core.cli import app
from parallax_core.config.home import keys_folder
from parallax_core.contracts.joining import ListeningHead
from parallax_core.plugins.host import PluginHost
from parallax_transport_zmq.keyring import Keyring
from tests.e2e.conftest import PROJECTS, ROOT, Server
from tests.support.snippets import ELSEWHERE, REASONS, Snippet, find_obstacle, list_snippets, split_words

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SNIPPETS = list(list_snippets())
BASH = shutil.which("bash") or "/bin/bash"
HERE = "http://127.0.0.1:8000"
"""Where the server of the pages is; that of the tests takes a free port."""
OTHERS = {"torch", "openai", "ollama"}
"""What pages install besides the distributions of this project."""
INSTALLED = {
    "parallax-adapters",
    "parallax-api-anthropic",
    "parallax-api-embeddings",
    "parallax-api-openai",
    "parallax-api-responses",
    "parallax-api-tokenize",
    "parallax-batch",
    "parallax-chat",
    "parallax-chat-requests",
    "parallax-client",
    "parallax-cluster",
    "parallax-core",
    "parallax-engines",
    "parallax-formats",
    "parallax-grammar-tools",
    "parallax-grammars",
    "parallax-manage",
    "parallax-models",
    "parallax-netcheck",
    "parallax-observe",
    "parallax-openapi",
    "parallax-operate",
    "parallax-policies",
    "parallax-quantize",
    "parallax-scaffold",
    "parallax-simulate",
    "parallax-source-hub",
    "parallax-source-pypi",
    "parallax-stage-tools",
    "parallax-standard",
    "parallax-tokenizers",
    "parallax-transport-zmq",
    "parallax-web",
}
"""What is there already where a page adds a wheel."""
LEAST_RUN = 40
"""The commands and snippets that run here, at least; the others have their reasons."""


def list_commands() -> Iterator[tuple[Snippet, str]]:
    for snippet in SNIPPETS:
        if snippet.language == "sh":
            yield from ((snippet, command) for command in snippet.commands)


def test_every_snippet_runs_or_says_why_it_cannot() -> None:
    found = Counter(find_obstacle(*each) for each in list_commands())
    found += Counter(find_obstacle(each, each.text) for each in SNIPPETS if each.language == "python")
    assert set(found) - {None} <= set(REASONS)
    assert found[None] >= LEAST_RUN, found


def test_every_shell_snippet_is_valid_shell() -> None:
    for snippet in SNIPPETS:
        if snippet.language == "sh":
            ran = subprocess.run([BASH, "-n"], input=snippet.text, capture_output=True, text=True, check=False)
            assert (ran.returncode, ran.stderr) == (0, ""), snippet


def parse(words: list[str]) -> None:
    """Parse the options and arguments of a command; raises what the command line would complain of."""
    command, context = typer.main.get_command(app), None
    name, rest = "parallax", words
    while True:
        context = command.make_context(name, list(rest), parent=context)
        if not hasattr(command, "resolve_command") or not context._protected_args:
            return
        found, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        name = found or ""


def test_every_parallax_command_has_options_and_arguments_that_exist() -> None:
    faults = []
    for snippet, command in list_commands():
        words = split_words(command.partition(" &")[0].partition(" <")[0])
        if words[:1] != ["parallax"] or snippet.page.startswith("docs/examples/"):  # which have commands of their own
            continue
        try:
            parse(words[1:])
            if "--" in words:
                parse(["serve", *words[words.index("--") + 1 :]])
        except Exception as error:  # noqa: BLE001 -- of the command line's library, or of ours
            faults.append(f"{snippet}: {command}: {error}")
    assert faults == []


def test_every_other_command_names_what_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    ours = {project["name"]: project for project in map(read_project, PROJECTS)}
    for snippet, command in list_commands():
        words = split_words(command)
        match words:
            case ["make", *targets]:
                for word in targets:
                    name, is_setting, _ = word.partition("=")
                    assert re.search(rf"^{name} *\?=" if is_setting else rf"^{name}:", makefile, re.MULTILINE), (
                        f"{snippet}: {word}"
                    )
            case ["pip", "install", *wanted]:
                for word in list_requirements(wanted):  # ours are wheels: no index has them
                    assert Requirement(word).name in OTHERS, f"{snippet}: {word}"
                wheels = {name for word in wanted if word.startswith("dist/") for name in list_wheels(word)}
                needed = {Requirement(each).name for name in wheels for each in ours[name].get("dependencies", ())}
                there = set() if "parallax-core" in wheels else INSTALLED
                assert (needed & set(ours)) <= wheels | there, f"{snippet}: {command}"
            case ["sudo", "cp", source, _]:
                assert (ROOT / source).exists(), f"{snippet}: {source}"


def list_requirements(words: list[str]) -> Iterator[str]:
    """Yield what a command of pip installs by name."""
    skips = False
    for word in words:
        if not skips and not word.startswith(("-", ".", "$", "dist/")):
            yield word
        skips = word in {"--index-url", "-e"}


def list_wheels(word: str) -> list[str]:
    """Return the distributions whose wheels a shell finds by a word such as ``dist/parallax_{core,models}-*.whl``."""
    match = re.fullmatch(r"dist/parallax_(?:\{(.*)\}|(\w+))-\*\.whl", word)
    assert match, word
    return [f"parallax-{part}".replace("_", "-") for part in (match[1] or match[2]).split(",")]


def read_project(folder: Path) -> dict[str, Any]:
    """Return what a distribution says of itself."""
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def test_tests_elsewhere_read_the_pages() -> None:
    for page, test in ELSEWHERE.items():
        text = (ROOT / test).read_text(encoding="utf-8") if (ROOT / test).exists() else ""
        assert Path(page).name in text or "docs/examples/" in text or "contractpage" in text, (page, test)


class Reader:
    """Types what a page shows, with the model on the machine, and the server of the tests as that of the pages."""

    def __init__(self, server: Server, model_home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server, self._folder, self._monkeypatch = server, folder, monkeypatch
        self._models = model_home / "models"
        self.printed = ""
        """What the last command has printed."""

    def begin(self, number: int) -> None:
        """Have a machine without anything, but a key that is trusted, and a server that listens."""
        home = self._folder / f"home-{number}"
        home.mkdir()
        (home / "models").symlink_to(self._models)
        self._monkeypatch.setenv("PARALLAX_HOME", str(home))
        self._monkeypatch.setenv("HOME", str(home))
        Keyring(keys_folder()).allow(bytes(range(32)), "studio")

    def listen(self) -> None:
        """Have had a server that listened on this machine, for which codes can be made."""
        method = get_method(PluginHost.prepare(), "zmq")
        method.prepare("head")
        head = ListeningHead("zmq", method.describe_head("head", "tcp://127.0.0.1:9000"))
        CodeStore(cluster_file()).note_head(head)

    def type(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Run a command."""
        words = split_words(command.replace(HERE, self._server.url.removesuffix("/v1")))
        if words[:3] in (["parallax", "cluster", "codes"], ["parallax", "cluster", "backup"]):
            self.listen()
        if words[0] == "parallax":
            self._monkeypatch.setattr(sys, "argv", words)
            self._monkeypatch.setattr(sys, "stdin", io.StringIO(self.printed))
            rest = ["--max-tokens", "8"] if words[1] == "chat" else []  # whole answers take the most time here
            app([*words[1:], *rest], standalone_mode=False)
        else:
            run_shell(command.replace(HERE, self._server.url.removesuffix("/v1")), self._folder)
        self.printed = capsys.readouterr().out


@pytest.fixture
def reader(server: Server, model_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.delenv("PARALLAX_API_KEY", raising=False)
    for module in (client, server_url):
        monkeypatch.setattr(module, "DEFAULT_URL", server.url)
    monkeypatch.chdir(tmp_path)
    return Reader(server, model_home, tmp_path, monkeypatch)


def list_pages(language: str) -> list[str]:
    """Return the pages with something in a language that runs here."""
    return list(dict.fromkeys(snippet.page for snippet, _ in list_runnable(language)))


def list_runnable(language: str, page: str = "") -> Iterator[tuple[Snippet, str]]:
    """Yield what runs here: commands, or whole snippets in Python."""
    for snippet in SNIPPETS:
        if snippet.language == language and page in {"", snippet.page}:
            for part in snippet.commands if language == "sh" else [snippet.text]:
                if find_obstacle(snippet, part) is None:
                    yield snippet, part


@pytest.mark.parametrize("page", list_pages("python"))
def test_python_of_a_page_runs(page: str, server: Server, reader: Reader) -> None:
    namespace: dict[str, Any] = {"__name__": "snippet"}
    for snippet, code in list_runnable("python", page):
        here = code.replace(HERE, server.url.removesuffix("/v1"))
        exec(compile(here, str(snippet), "exec", dont_inherit=True), namespace)  # noqa: S102 -- that is the test
    for name in ("stream", "client"):
        if name in namespace:
            namespace[name].close()


@pytest.mark.parametrize("page", list_pages("sh"))
def test_shell_of_a_page_runs(page: str, reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    section = -1
    for snippet, command in list_runnable("sh", page):
        if snippet.section != section:
            reader.begin(section := snippet.section)
        if "requests.jsonl" in command:
            write_requests("docs/how-to/batch.md")
        reader.type(command, capsys)


def write_requests(page: str) -> None:
    """Write the file that a page shows."""
    [first, *_] = re.findall(
        r"^```json\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    Path("requests.jsonl").write_text(first, encoding="utf-8")


def run_shell(command: str, folder: Path) -> None:
    ran = subprocess.run([BASH, "-ec", command], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    if command.startswith("curl"):
        assert "error" not in json.loads(ran.stdout), ran.stdout
