"""Reports on vLLM for ``parallax doctor``."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_backend_vllm.probe import REMEDY
from parallax_backend_vllm.versions import describe_supported, explain_unsupported, find_installed
from parallax_core.api import Finding


def list_findings() -> Iterable[Finding]:
    """Return the release that is installed in this environment, beside the supported ones."""
    version, topic = find_installed(), "vllm"
    if not version:
        message = f"not installed in this environment; {describe_supported()} is supported"
        return [Finding(topic=topic, status="ok", message=message)]
    if reason := explain_unsupported(version):
        return [Finding(topic=topic, status="error", message=reason, remedy=REMEDY)]
    return [Finding(topic=topic, status="ok", message=f"{version}; {describe_supported()} is supported")]
