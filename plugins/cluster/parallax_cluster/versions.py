"""Compares the versions of core and plugins on the nodes of a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from parallax_core.api.deployment import PluginHost

CORE = "parallax-core"
Versions = Mapping[str, str]
"""The version of each distribution, by its name."""


def list_versions(plugins: PluginHost) -> Versions:
    """Return the versions of core and of the distributions of plugins."""
    found = {CORE: version(CORE)}
    return found | {each.distribution: each.version for each in plugins.records}


@cache
def find_own(distribution: str) -> str:
    """Return the version of a distribution on this machine; empty: it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def find_expected(nodes: Iterable[Versions]) -> Versions:
    """Return the expected version of each distribution: this server's, else that of most nodes."""
    counts: dict[str, Counter[str]] = {}
    for versions in nodes:
        for name, each in versions.items():
            counts.setdefault(name, Counter())[each] += 1
    return {name: find_own(name) or count.most_common(1)[0][0] for name, count in counts.items()}
