"""Writes a folder of installed distributions with their metadata."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from parallax_core.plugins.discovery import DISABLED_VARIABLE

PARALLAX = str(Path(sys.executable).with_name("parallax"))
OTHERS = sorted({point.dist.name for point in entry_points(group="parallax") if point.dist} - {"parallax-core"})
"""The other installed distributions with plugins, which tests disable since loading them takes time."""


class Site:
    """A folder in which distributions are installed, and in which the command line runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"

    def install(self, name: str, code: str, api: str = "1", requires: Sequence[str] = ()) -> None:
        """Install a plugin; ``{name}`` and ``{module}`` in its code are filled in."""
        module = f"{name}_plugin"
        self.add(name, {module: code.replace("{name}", name).replace("{module}", module)}, requires)
        groups = {"parallax": f"{name} = {module}", **({"parallax.api": f"{api} = {module}"} if api else {})}
        self.state(name, groups)

    def install_command(self, name: str, command: str, code: str, groups: Mapping[str, str] | None = None) -> None:
        """Install a distribution with a sub-command."""
        self.add(name, {f"{name}_plugin": code})
        self.state(name, {"parallax.commands": f"{command} = {name}_plugin:app", **(groups or {})})

    def add(self, name: str, modules: Mapping[str, str], requires: Sequence[str] = ()) -> None:
        """Install a distribution without entry points."""
        for module, code in modules.items():
            (self.folder / f"{module}.py").write_text(code)
        info = self._info(name)
        info.mkdir()
        needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")

    def state(self, name: str, groups: Mapping[str, str]) -> None:
        """Write the entry points of a distribution."""
        text = "".join(f"[{group}]\n{line}\n" for group, line in groups.items())
        (self._info(name) / "entry_points.txt").write_text(text)

    def run(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run ``parallax`` in this folder, without the user's configuration and without other plugins."""
        return subprocess.run(
            [PARALLAX, *arguments],
            cwd=self.folder,
            env=self.environment(**changes),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def environment(self, **changes: str) -> dict[str, str]:
        """Return the environment variables of a process that `run` starts."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PARALLAX_")}
        disabled = ",".join([*OTHERS, *filter(None, [changes.pop(DISABLED_VARIABLE, "")])])
        ours = {"PYTHONPATH": str(self.folder), "PARALLAX_HOME": str(self.home), DISABLED_VARIABLE: disabled}
        return {**kept, **ours, **changes}

    def _info(self, name: str) -> Path:
        return self.folder / f"{name}-1.0.dist-info"
