"""``parallax doctor``."""

from __future__ import annotations

import typer

from parallax_core.cli.command import new_app
from parallax_core.contracts.finding import Finding
from parallax_core.node.choice import probe
from parallax_core.plugins.host import PluginHost

app = new_app()

MARKS = {"ok": "ok     ", "warning": "WARNING", "error": "ERROR  "}


@app.command()
def doctor() -> None:
    """Examine this machine and this installation, and say what to do about what is wrong.

    Exits with 1 when something is broken.
    """
    host = PluginHost.discover()
    findings = [finding for _, finding in host.diagnose()] + _examine_backends(host)
    findings += _examine_plugins(host)
    for finding in findings:
        print(f"{MARKS[finding.status]} {finding.topic}: {finding.message}")
        if finding.remedy:
            print(f"        {finding.remedy}")
    if any(finding.status == "error" for finding in findings):
        raise typer.Exit(1)


def _examine_backends(host: PluginHost) -> list[Finding]:
    offers = host.backends().offers
    if not offers:
        remedy = "install one, such as parallax-backend-mlx"
        return [Finding(topic="backends", status="error", message="no backend is installed", remedy=remedy)]
    findings = []
    for offer in offers:
        found = probe(offer)
        message = f"can run on {found.device}" if found.ok else found.reason
        status = "ok" if found.ok else "warning"
        findings.append(Finding(topic=f"backend {offer.spec.name}", status=status, message=message))  # type: ignore[arg-type]
    return findings


def _examine_plugins(host: PluginHost) -> list[Finding]:
    findings = []
    for record in host.records:
        if record.state == "loaded":
            finding = Finding(topic=f"plugin {record.name}", status="ok", message=record.origin)
        else:
            status = "warning" if record.state == "disabled" else "error"
            message = f"{record.origin} is {record.state}: {record.reason}"
            finding = Finding(topic=f"plugin {record.name}", status=status, message=message, remedy=record.remedy)  # type: ignore[arg-type]
        findings.append(finding)
    return findings
