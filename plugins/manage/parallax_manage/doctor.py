"""Check this machine and this installation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Literal

import typer

from parallax_core.api import Finding, ParallaxError
from parallax_core.api.cli import Config, ConfigFile, PluginHost, new_app
from parallax_core.api.deployment import probe
from parallax_core.api.installation import localize_here, run_moved
from parallax_manage.machine import examine_machine
from parallax_manage.plugins import describe_plugins

app = new_app()

Status = Literal["ok", "warning", "error"]

MARKS = {"ok": "ok     ", "warning": "WARNING", "error": "ERROR  "}


@app.command()
def doctor(
    strict_plugins: Annotated[
        bool,
        typer.Option(
            "--strict-plugins", help="End with one error that names every plugin that is broken or incompatible."
        ),
    ] = False,
    network: Annotated[bool, typer.Option("--network", hidden=True)] = False,
    ask: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    config: ConfigFile = None,
) -> None:
    """Check this machine and this installation, and suggest a remedy for each problem.

    Exits with 1 when something is broken.
    """
    if network or ask:
        words = [word for server in ask or [] for word in ("--ask", server)]
        run_moved("doctor --network", "network", [*words, *(["--json"] if as_json else [])])
        return
    loaded = Config.load(config)
    host = PluginHost.discover(loaded)
    is_fine = _report(loaded, host, as_json=as_json)
    if strict_plugins:
        host.require_all()
    if not is_fine:
        raise typer.Exit(1)


def _report(loaded: Config, host: PluginHost, *, as_json: bool) -> bool:
    """Print each finding as soon as it is known, as text, or all as JSON; return whether none is an error."""
    findings = []
    for finding in _examine(loaded, host):
        findings.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        print(json.dumps({"findings": [asdict(finding) for finding in findings]}, indent=2))
    return all(finding.status != "error" for finding in findings)


def _print(finding: Finding) -> None:
    print(f"{MARKS[finding.status]} {finding.topic}: {finding.message}", flush=True)
    if finding.remedy:
        print(f"        {localize_here(finding.remedy)}", flush=True)


def _examine(loaded: Config, host: PluginHost) -> Iterator[Finding]:
    """Yield each finding as soon as it is known: a plugin may be slow, or hang."""
    yield _examine_config(loaded, host)
    yield from examine_machine()
    yield from (finding for _, finding in host.diagnose())
    yield from _examine_backends(host)
    yield from _examine_plugins(host)


def _examine_config(loaded: Config, host: PluginHost) -> Finding:
    try:
        host.configure(loaded)
    except ParallaxError as error:
        return Finding(topic="configuration", status="error", message=error.message, remedy=error.hint)
    message = str(loaded.file) if loaded.file else "no file, which is fine"
    return Finding(topic="configuration", status="ok", message=message)


def _examine_backends(host: PluginHost) -> Iterator[Finding]:
    registry = host.backends()
    conflicts = registry.conflicts()
    if not registry.offers:
        remedy = "install one: pip install parallax-backend-mlx"
        yield Finding(topic="backends", status="error", message="no backend is installed", remedy=remedy)
    for offer in registry.offers:
        found = probe(offer)
        is_elsewhere = not found.ok and host.find_python(offer.spec) is not None
        message = f"can run on {found.device}" if found.ok else found.reason
        if is_elsewhere:
            message = "can run in the environment of its engine"
        status: Status = "ok" if found.ok or is_elsewhere else "warning"
        origin = f" of {offer.plugin.origin}" if offer.spec.name in conflicts else ""
        topic = f"backend {offer.spec.name}{origin}"
        yield Finding(topic=topic, status=status, message=message, remedy=found.advice)


def _examine_plugins(host: PluginHost) -> Iterator[Finding]:
    for plugin in describe_plugins(host):
        origin, state = f"{plugin['distribution']} {plugin['version']}", plugin["state"]
        topic = f"plugin {plugin['name']}"
        if state == "loaded":
            yield Finding(topic=topic, status="ok", message=origin)
        else:
            message = f"{origin} is {state}: {plugin['reason']}"
            status: Status = "warning" if state == "disabled" else "error"
            yield Finding(topic=topic, status=status, message=message, remedy=plugin["remedy"])
        yield from (Finding(topic=topic, status="warning", message=each) for each in plugin["refused"])
