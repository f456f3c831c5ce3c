"""The kit of an old policy, run where it alone is installed: what is tested is what its entry point leads to."""

from __future__ import annotations

from typing import Any

from parallax_core.plugins.host import PluginHost
from parallax_core.testing.policy import BatchingConformance

Policy: Any = PluginHost.discover().policies("batching").get("rush").spec.factory.load()


class TestOldPolicy(BatchingConformance):
    policy = Policy(gap_s=0.01, most_s=0.05)
    bound_s = 0.05
