"""The built-in plugin, which uses the same hooks as all others."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import DialectSpec, Finding, PolicySpec, Ref, SettingsSpec, SourceSpec, TransportSpec, hookimpl


@hookimpl
def parallax_register_sources() -> Iterable[SourceSpec]:
    """Offer local folders."""
    return [
        SourceSpec(
            name="file",
            summary="a model folder on this machine",
            factory=Ref("parallax_core.builtin.local:LocalSource"),
            takes_paths=True,
        ),
    ]


@hookimpl
def parallax_register_policies() -> Iterable[PolicySpec]:
    """Offer policies for batching, preemption, routing and placement."""
    from parallax_core.builtin.offers import POLICIES

    return POLICIES


@hookimpl
def parallax_register_transports() -> Iterable[TransportSpec]:
    """Offer the transport between nodes of one process."""
    return [
        TransportSpec(
            name="inprocess",
            summary="nodes of one process",
            factory=Ref("parallax_core.builtin.inprocess:InProcessTransport"),
        )
    ]


@hookimpl
def parallax_register_dialects() -> Iterable[DialectSpec]:
    """Offer OpenAI's chat, completions and embeddings, and vLLM's routes of the tokenizer."""
    from parallax_core.builtin.offers import DIALECTS

    return DIALECTS


@hookimpl
def parallax_register_settings() -> Iterable[SettingsSpec]:
    """Declare the configuration sections of core."""
    from parallax_core.builtin.offers import SETTINGS

    return SETTINGS


@hookimpl
def parallax_diagnose() -> Iterable[Finding]:
    """Report on Python, folders and the disk."""
    from parallax_core.builtin.diagnosis import examine_machine

    return examine_machine()
