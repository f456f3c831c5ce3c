"""Makes the command lines of the further nodes that a worker starts on its machine."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from parallax_core.api.deployment import WorkerSettings

PORT = re.compile(r"(?<=:)\d+$")
"""The port at the end of an address."""


def make_further_command(
    settings: WorkerSettings, config_file: Path | None, heads: Mapping[str, bytes], node: str
) -> list[str]:
    """Return the command line of the further node called ``node`` of a worker.

    It has the settings of the worker, whose process it watches, except that it measures nothing, announces nothing,
    and listens at another port.

    Args:
        settings: the worker's.
        config_file: the configuration that the worker uses; None: none.
        heads: the keys of the heads that the worker trusts, by name.
        node: the name of the further node.
    """
    key = heads.get(settings.head)
    given = dataclasses.replace(
        settings,
        node=node,
        model="",
        layers=None,
        announce=(),
        listen=drop_port(settings.listen) if settings.listen else None,
        allow_model=("*",) if settings.supervised else settings.allow_model,  # a server trusts its own models
        supervised=True,
        as_joined=False,
        relay=False,
        trust_head=key.hex() if key else settings.trust_head,
    )
    command = [sys.executable, "-P", "-m", "parallax_core", "worker"]
    for field in dataclasses.fields(WorkerSettings):
        value = getattr(given, field.name)
        if value != field.default:
            command += _write(field.name, value)
    return command + (["--config", str(config_file)] if config_file else [])


def drop_port(address: str) -> str:
    """Return an address to listen at with any free port in place of its own."""
    return PORT.sub("0", address)


def _write(name: str, value: object) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, tuple):
        return [part for each in value for part in (flag, str(each))]
    return [flag] if value is True else [f"--no-{flag[2:]}"] if value is False else [flag, str(value)]
