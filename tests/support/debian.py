"""Programs of Debian for tests, unpacked into a folder without being root."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def unpack(folder: Path, *packages: str) -> None:
    """Fetch packages, and what they need beside the packages that are installed, and unpack them below ``root``.

    Raises:
        subprocess.CalledProcessError: if they cannot be fetched.
    """
    for each in ("lists/partial", "archives/partial", "root"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    options = ["Debug::NoLocking=1", f"Dir::State::lists={folder}/lists", f"Dir::Cache::archives={folder}/archives"]
    apt = ["/usr/bin/apt-get", "--quiet", "--yes"]
    apt += [word for each in (*options, "APT::Sandbox::User=root") for word in ("-o", each)]
    subprocess.run([*apt, "update"], check=True, stdout=sys.stderr)
    wanted = ["--no-install-recommends", "--download-only", "install", *packages]
    subprocess.run([*apt, *wanted], check=True, stdout=sys.stderr)
    for package in (folder / "archives").glob("*.deb"):
        subprocess.run(["/usr/bin/dpkg-deb", "--extract", str(package), str(folder / "root")], check=True)


def write_program(folder: Path, name: str, path: str) -> Path:
    """Write a program ``name`` that starts the one at ``path`` below ``root`` with the libraries that are there."""
    libraries = ":".join(str(path) for path in sorted({each.parent for each in folder.glob("root/usr/lib/**/*.so*")}))
    program = folder / name
    text = f'#!/bin/sh\nLD_LIBRARY_PATH="{libraries}" exec "{folder}/root/{path}" "$@"\n'
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)
    return program
