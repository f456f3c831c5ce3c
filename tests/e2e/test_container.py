"""The Dockerfile does what it says: its steps are run one by one in a folder that stands for the image."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import MODEL, ROOT, Server, find_site

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

FILE = ROOT / "docs/examples/deploy/Dockerfile"
FOLDERS = ("/wheels", "/srv/parallax")
"""Of the image; what is mounted into it, PARALLAX_HOME, is the tests' own."""


class Image:
    """What has been built so far."""

    def __init__(self, root: Path, wheels: Path) -> None:
        self._root = root
        self._wheels = wheels
        python = root / "bin"  # what `FROM python` brings
        python.mkdir()
        (python / "python").symlink_to(sys.executable)
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("PARALLAX_", "PYTHON"))}
        quick = {"PIP_NO_COMPILE": "1", "PIP_NO_DEPS": "1"}  # what ours need is lent, see `borrow`
        self.settings = {**bare, **quick, "PATH": f"{python}{os.pathsep}{os.environ['PATH']}"}
        self.command: list[str] = []

    def place(self, text: str) -> str:
        """Return ``text`` with the folders of the image where they are."""
        return re.sub("|".join(FOLDERS), lambda match: str(self._root) + match[0], text)

    def borrow(self, folder: Path) -> None:
        """Take what was installed in another environment, all but what is ours, which has to be here."""
        here, there = find_site(self._root / "srv/parallax"), find_site(folder)
        assert {path.name for path in here.glob("parallax_*")} == {path.name for path in there.glob("parallax_*")}
        (here / "borrowed.pth").write_text(f"{there}\n")

    def do(self, step: str, rest: str) -> None:
        """Do what a line says."""
        match step:
            case "FROM":
                assert rest.startswith("python:3.11")
            case "COPY":
                source, target = rest.split()
                assert source == "dist"  # where `make wheels` builds them
                shutil.copytree(self._wheels, self.place(target))
            case "RUN":
                subprocess.run(["/bin/sh", "-e", "-c", self.place(rest)], check=True, env=self.settings, cwd=self._root)
            case "ENV":
                name, value = rest.split("=")
                self.settings[name] = value
            case "ENTRYPOINT" | "CMD":
                self.command += [self.place(word) for word in json.loads(rest)]
            case "VOLUME" | "EXPOSE":
                assert rest in {self.settings.get("PARALLAX_HOME"), "8000"}
            case _:
                pytest.fail(f"the Dockerfile has a step {step}")


def read_steps() -> Iterator[tuple[str, str]]:
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            step, _, rest = line.partition(" ")
            yield step, rest


def test_image_serves_whoever_has_the_key(wheels: Path, bin_folder: Path, model_home: Path, tmp_path: Path) -> None:
    image = Image(tmp_path, wheels)
    for step, rest in read_steps():
        image.do(step, rest)
    image.borrow(bin_folder.parent)
    settings = {**image.settings, "PARALLAX_HOME": str(model_home), "PARALLAX_SERVE__PORT": "0"}
    refused = subprocess.run(image.command, env=settings, capture_output=True, text=True, timeout=60, check=False)
    assert (refused.returncode, "API key" in refused.stderr) == (2, True), refused.stderr
    log = tmp_path / "log"
    settings["PARALLAX_API_KEY"] = "secret"
    with log.open("w") as sink:
        process = subprocess.Popen(image.command, stdout=subprocess.PIPE, stderr=sink, text=True, env=settings)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready http://0.0.0.0:"), log.read_text()
    server = Server(process, line.split()[1].replace("0.0.0.0", "127.0.0.1"), log, [line])  # noqa: S104
    request = urllib.request.Request(f"{server.url}/models", headers={"Authorization": "Bearer secret"})
    with urllib.request.urlopen(request, timeout=10) as response:
        assert json.load(response)["data"][0]["id"] == MODEL
    server.end(signal.SIGTERM)
    assert process.returncode == 0
