"""The plugins whose API dialects the servers of tests speak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import parallax_api_anthropic.plugin
import parallax_api_embeddings.plugin
import parallax_api_openai.plugin
import parallax_api_responses.plugin
import parallax_api_tokenize.plugin
import parallax_cluster.plugin
import parallax_observe.plugin
import parallax_openapi.plugin
import parallax_operate.plugin
from parallax_core.builtin import plugin
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_core.server.body_messages import ReaderSetup
from parallax_core.server.body_reader import load_bodies
from parallax_core.server.dialects import list_bodies


def make_plugins(**others: object) -> PluginHost:
    """Return the host of the built-in plugin, of those of this repository with dialects, and of ``others``."""
    return make_core(
        cluster=parallax_cluster.plugin,
        embeddings=parallax_api_embeddings.plugin,
        messages=parallax_api_anthropic.plugin,
        observe=parallax_observe.plugin,
        openai=parallax_api_openai.plugin,
        openapi=parallax_openapi.plugin,
        operate=parallax_operate.plugin,
        responses=parallax_api_responses.plugin,
        tokenize=parallax_api_tokenize.plugin,
        **others,
    )


def make_core(**others: object) -> PluginHost:
    """Return the host of the built-in plugin and of ``others``."""
    modules = {"core": plugin, **others}
    return PluginHost(
        (PluginRecord(name=name, distribution="parallax-core", version="1", module=name, state="loaded"), module)
        for name, module in modules.items()
    )


TARGETS = list_bodies(make_plugins())
BODIES = load_bodies(TARGETS)


def make_setup(folder: str | Path, **given: Any) -> ReaderSetup:
    """Return the setup of a process that reads bodies for the model ``tiny`` in a folder."""
    return ReaderSetup(**{"folder": str(folder), "model_id": "tiny", "bodies": TARGETS, **given})
