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

No hook runs per step or per token.
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from parallax_core.contracts.backend import BackendSpec
from parallax_core.contracts.finding import Finding
from parallax_core.contracts.model import ModelSpec
from parallax_core.contracts.policy import PolicySpec
from parallax_core.contracts.source import SourceSpec
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
def parallax_diagnose() -> Iterable[Finding]:  # type: ignore[empty-body]
    """Report for ``parallax doctor``: versions, devices, known trouble and its remedy. May take seconds."""
