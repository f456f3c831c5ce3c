"""Every hook a plugin may implement.

A plugin is a module named in the entry-point group ``parallax`` of an installed distribution. It marks its
implementations with `hookimpl`, and says which plugin API it was written for in the group ``parallax.api``::

    [project.entry-points.parallax]
    mine = "my_package.plugin"

    [project.entry-points."parallax.api"]
    1 = "my_package.plugin"

Registration hooks offer something. They are called once per process, when a command first needs that kind of
thing. They return specs and do nothing else: no framework import, no device, no file, no network. Name objects
with a `Ref`; core loads one when somebody asks for it by name.

Call hooks are told of something, or asked. An implementation may leave out arguments it has no use for, and is a plain
function: neither ``async`` nor a wrapper. One that raises harms only its own plugin, which counts as broken from then
on. What it prints goes to standard error.

No hook runs per step or per token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pluggy

from parallax_core.contracts.backend import BackendSpec
from parallax_core.contracts.event import Event
from parallax_core.contracts.finding import Finding
from parallax_core.contracts.model import ModelSpec
from parallax_core.contracts.parser import ParserSpec
from parallax_core.contracts.policy import PolicySpec
from parallax_core.contracts.setting import Settings, SettingsSpec
from parallax_core.contracts.source import SourceSpec
from parallax_core.contracts.surface import HttpSurface
from parallax_core.contracts.transport import TransportSpec

PLUGIN_API = 1
"""Raised when a hook or contract loses or changes something; growth does not raise it."""

hookspec = pluggy.HookspecMarker("parallax")
hookimpl = pluggy.HookimplMarker("parallax")


@hookspec
def parallax_register_backends() -> Iterable[BackendSpec]:  # type: ignore[empty-body]
    """Offer ways to run layers on a device, such as MLX on Apple silicon.

    Return one spec per backend. Its name is what users write in ``--backend``. Whether this machine can run it
    is answered later by ``BackendSpec.probe``, never here.
    """


@hookspec
def parallax_register_models() -> Iterable[ModelSpec]:  # type: ignore[empty-body]
    """Offer adapters of model families: their shapes, and which tensor belongs to which layer.

    Return one spec per family. ``ModelSpec.architectures`` are what config.json calls its models; each has one adapter.
    """


@hookspec
def parallax_register_sources() -> Iterable[SourceSpec]:  # type: ignore[empty-body]
    """Offer places models come from. The name is the scheme users write: ``hf`` in ``hf:org/name``."""


@hookspec
def parallax_register_policies() -> Iterable[PolicySpec]:  # type: ignore[empty-body]
    """Offer decisions: when a step begins, who gives way when memory runs out, which replica gets a request.

    ``PolicySpec.kind`` says which of these; a name need be unique only among those of its kind. The name is what
    users write, with options after it: ``--batching size-or-delay:size=8,delay_s=0.02``. The options are the fields
    of the dataclass that ``PolicySpec.factory`` names. Policies are pure: what they are given is all they know, and
    the same input gives the same answer.
    """


@hookspec
def parallax_register_transports() -> Iterable[TransportSpec]:  # type: ignore[empty-body]
    """Offer ways for nodes to reach each other.

    Return one spec per transport. Whether it can listen where it is asked to is found out when it starts, never here.
    """


@hookspec
def parallax_register_parsers() -> Iterable[ParserSpec]:  # type: ignore[empty-body]
    """Offer readers of what models write: which of it is for the reader, which is reasoning, and which are calls.

    Return one spec per way of marking these, which models of one family usually share. A parser is made anew for each
    answer. Whether it is right is told by its kit, `parallax_core.testing.parser.ParserConformance`.
    """


@hookspec
def parallax_register_settings() -> Iterable[SettingsSpec]:  # type: ignore[empty-body]
    """Declare sections of the configuration, each a dataclass of your own.

    Return one spec per section. Its keys are checked and typed before `parallax_configure` is called.
    """


@hookspec(historic=True)
def parallax_configure(config: Settings) -> None:
    """Take your settings: ``config.section(MySettings)``.

    Called once, after all plugins are loaded and before anything they offer is used. A plugin that is added later is
    called then.
    """


@hookspec(firstresult=True)
def parallax_select_backend(model_config: Mapping[str, Any], available: Sequence[str]) -> str | None:
    """Choose what runs a model, where the user has not.

    Called by ``parallax serve`` without ``--backend``, before the ranks of backends decide. The first answer that is
    not None holds; ``hookimpl(tryfirst=True)`` goes before others.

    Args:
        model_config: the contents of the model's config.json.
        available: the names of the backends that this machine can run, best rank first.

    Returns:
        One of ``available``, or None to leave it to others.
    """


@hookspec
def parallax_extend_server(server: HttpSurface) -> None:
    """Add routes to the HTTP server, which are behind the same API keys as all others.

    Called once by ``parallax serve``, before the model is loaded.
    """


@hookspec
def parallax_observe(event: Event) -> None:
    """Watch what happens: requests begin and end, the engine is ready, a stage is lost.

    Called on a thread of your plugin's own, one event at a time, in order. Whatever you do there holds nobody up: if
    you are too slow, events are dropped, counted, and the count is logged. An event of a kind you do not know is to be
    ignored, since kinds are added.
    """


@hookspec
def parallax_diagnose(config: Settings) -> Iterable[Finding]:  # type: ignore[empty-body]
    """Report for ``parallax doctor``: versions, devices, known trouble and its remedy. May take seconds."""


@hookspec
def parallax_shutdown() -> None:
    """Put things in order: ``parallax serve`` ends, the engine has stopped.

    Called on a thread of its own. What takes longer than half a second is not waited for.
    """
