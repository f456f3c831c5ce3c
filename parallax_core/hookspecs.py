"""The hooks that a plugin may implement.

A plugin is a module named in the entry-point group ``parallax`` of an installed distribution. It marks its
implementations with `hookimpl`, and states its plugin API version in the group ``parallax.api``::

    [project.entry-points.parallax]
    mine = "my_package.plugin"

    [project.entry-points."parallax.api"]
    1 = "my_package.plugin"

Registration hooks offer things by name. They are called once per process, when a command first needs that kind of
thing. They return specs and do nothing else: no framework import, no device, no file, no network. Name objects with a
`Ref`; core imports one when its name is requested.

Call hooks report an event or ask a question. An implementation may omit arguments, and is a plain function: neither
``async`` nor a wrapper. If it raises, only its own plugin is affected, which counts as broken from then on. Its output
goes to standard error.

No hook runs per step or per token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pluggy

from parallax_core.contracts.backend import BackendPython, BackendSpec
from parallax_core.contracts.deployment import DeploymentSpec
from parallax_core.contracts.dialect import DialectSpec
from parallax_core.contracts.event import Event
from parallax_core.contracts.finding import Finding
from parallax_core.contracts.model import ModelSpec
from parallax_core.contracts.node_service import NodeServiceSpec
from parallax_core.contracts.page import PageServer
from parallax_core.contracts.parser import ParserSpec
from parallax_core.contracts.policy import PolicySpec
from parallax_core.contracts.replica import ReplicaSpec
from parallax_core.contracts.setting import Settings, SettingsSpec
from parallax_core.contracts.source import SourceSpec
from parallax_core.contracts.surface import HttpSurface
from parallax_core.contracts.transport import TransportSpec

PLUGIN_API = 1
"""Raised when a hook or contract changes incompatibly; additions do not raise it."""

hookspec = pluggy.HookspecMarker("parallax")
hookimpl = pluggy.HookimplMarker("parallax")


@hookspec
def parallax_register_backends() -> Iterable[BackendSpec]:  # type: ignore[empty-body]
    """Offer ways to run layers on a device, such as MLX on Apple silicon.

    Return one spec per backend. Users select it by name with ``--backend``. ``BackendSpec.probe`` tells later whether
    this machine can run it; this hook never does.
    """


@hookspec
def parallax_register_models() -> Iterable[ModelSpec]:  # type: ignore[empty-body]
    """Offer adapters of model families, which describe their shapes and the layers of their tensors.

    Return one spec per family. ``ModelSpec.architectures`` are its names in config.json; each has one adapter.
    """


@hookspec
def parallax_register_sources() -> Iterable[SourceSpec]:  # type: ignore[empty-body]
    """Offer model sources. The name is the scheme that users write: ``hf`` in ``hf:org/name``."""


@hookspec
def parallax_register_policies() -> Iterable[PolicySpec]:  # type: ignore[empty-body]
    """Offer policies for batching, scheduling, preemption, routing and placement.

    They decide when a step begins, whose prompts are computed first, which request is preempted, which replica gets a
    request, and which node holds which layers.

    ``PolicySpec.kind`` is the kind of decision; a name must be unique only within its kind. Users write the name with
    options after it: ``--set batching=size-or-delay:size=8,delay_s=0.02``. The options are the fields of the dataclass
    that ``PolicySpec.factory`` names. Policies are pure: they depend only on their arguments, and the same arguments
    give the same answer.
    """


@hookspec
def parallax_register_transports() -> Iterable[TransportSpec]:  # type: ignore[empty-body]
    """Offer transports between nodes.

    Return one spec per transport. Its start tells whether it can listen at an address; this hook never does.
    """


@hookspec
def parallax_register_parsers() -> Iterable[ParserSpec]:  # type: ignore[empty-body]
    """Offer output parsers, which separate content, reasoning and tool calls in the text of a model.

    Return one spec per output format, which models of one family usually share. A parser is created for each answer.
    Test it with its kit, `parallax_core.testing.parser.ParserConformance`.
    """


@hookspec
def parallax_register_dialects() -> Iterable[DialectSpec]:  # type: ignore[empty-body]
    """Offer HTTP APIs that the server speaks, such as OpenAI's chat completions.

    Return one spec per API. Its bodies are read in processes of their own, and turned into requests to the engine; its
    routes write the answers. `parallax_core.api.dialect` has what they need. An API whose requests can be forwarded to
    routes of another is simpler by `parallax_extend_server`.
    """


@hookspec
def parallax_register_deployments() -> Iterable[DeploymentSpec]:  # type: ignore[empty-body]
    """Offer kinds of deployments: where the nodes of a server come from, and how a worker finds its server.

    Return one spec per kind, such as one that starts nodes as jobs of Slurm or as actors of Ray. Users write its name
    as ``deployment`` in ``[serve]`` or ``[worker]``. Test it with its kit,
    `parallax_core.testing.deployment.DeploymentConformance`.
    """


@hookspec
def parallax_register_settings() -> Iterable[SettingsSpec]:  # type: ignore[empty-body]
    """Declare sections of the configuration, each as a dataclass.

    Return one spec per section. Its keys are checked and typed before `parallax_configure` is called.
    """


@hookspec
def parallax_register_node_services() -> Iterable[NodeServiceSpec]:  # type: ignore[empty-body]
    """Offer services of nodes and heads, with messages and purposes of links of their own.

    Return one spec per service. A service runs in each worker, in each server that nodes join, or in both.
    """


@hookspec
def parallax_register_replicas() -> Iterable[ReplicaSpec]:  # type: ignore[empty-body]
    """Offer kinds of replicas, which serve a whole model in place of core's pipeline of stages.

    Return one spec per kind. A backend names the kind in `BackendSpec.opens`. What its worker does is a node service
    of the same plugin. Test it with its kit, `parallax_core.testing.replica_kind.ReplicaKindConformance`.
    """


@hookspec(historic=True)
def parallax_configure(config: Settings) -> None:
    """Read your settings with ``config.section(MySettings)``.

    Called once, after all plugins are loaded and before anything they offer is used. For a plugin added later, it is
    called at that time.
    """


@hookspec(firstresult=True)
def parallax_select_backend(
    model_config: Mapping[str, Any], available: Sequence[str], with_blocks: Sequence[str]
) -> str | None:
    """Choose the backend of a model if the user has not.

    Called by ``parallax serve`` without ``--backend``, before the ranks of backends decide. The first answer other than
    None counts; ``hookimpl(tryfirst=True)`` is called before others.

    Args:
        model_config: the contents of the model's config.json.
        available: the names of the backends that this machine can run, best rank first.
        with_blocks: those of them for which the model's adapter has blocks; see `ModelSpec.blocks`.

    Returns:
        One of ``available``, or None to leave the choice to others.
    """


@hookspec(firstresult=True)
def parallax_find_python(backend: BackendSpec) -> BackendPython | None:
    """Name the Python that runs the workers of a backend which this environment cannot run.

    Called by ``parallax serve`` and ``parallax doctor``; the first answer other than None counts, where the probe of
    the backend fails and ``--python`` names none. Look at files only, and start nothing. Test it with its kit,
    `parallax_core.testing.backend_python.BackendPythonConformance`.

    Returns:
        The Python, also if it cannot be used, with the reason; or None if you have no environment for the backend.
    """


@hookspec
def parallax_extend_server(server: HttpSurface) -> None:
    """Add routes to the HTTP server; the same API keys apply as to all others.

    Called once by ``parallax serve``, before the model is loaded.
    """


@hookspec(firstresult=True)
def parallax_serve_pages() -> PageServer | None:
    """Serve the pages that plugins add by `HttpSurface.add_page`.

    Called once for each server, before plugins extend it; the first answer other than None counts. Test it with its
    kit, `parallax_core.testing.page_server.PageServerConformance`.
    """


@hookspec
def parallax_observe(event: Event) -> None:
    """Observe events: a request begins or ends, the engine is ready, a stage is lost.

    Called on a thread of your plugin, one event at a time, in order. It never delays the server: if the plugin is too
    slow, events are dropped and their number is logged. Ignore events of unknown types, since new types are added.
    """


@hookspec
def parallax_diagnose(config: Settings, backends: Sequence[BackendSpec]) -> Iterable[Finding]:  # type: ignore[empty-body]
    """Report to ``parallax doctor``: versions, devices, known problems and their remedies. May take seconds.

    ``backends`` are those that plugins offer.
    """


@hookspec
def parallax_shutdown() -> None:
    """Clean up: ``parallax serve`` ends, and the engine has stopped.

    Called on its own thread. The server waits at most half a second for it.
    """
