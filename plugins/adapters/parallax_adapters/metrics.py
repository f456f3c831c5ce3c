"""Shows the LoRA adapters of a server to gateways, which route requests by them."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily

from parallax_adapters.registry import AdapterRegistry


class AdapterMetrics:
    """Collects vLLM's gauge of adapters, and the same by adapter; see `parallax_core.api.Collector`."""

    def __init__(self, registry: AdapterRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[object]:
        """Return the gauges; the value of vLLM's is the time, in seconds since 1970."""
        loaded, running = list(self._registry.loaded.values()), self._registry.count_running()
        names = ",".join(sorted(each.name for each in loaded if running[each.key]))
        labels = ["max_lora", "running_lora_adapters", "waiting_lora_adapters"]
        info = GaugeMetricFamily("vllm:lora_requests_info", "The running LoRA adapters.", labels=labels)
        info.add_metric([str(self._registry.settings.max_adapters), names, ""], time.time())
        yield info
        by_name = GaugeMetricFamily(
            "parallax_adapter_requests",
            "The running requests of each loaded LoRA adapter.",
            labels=["adapter", "model"],
        )
        for each in loaded:
            by_name.add_metric([each.name, each.model_id], running[each.key])
        yield by_name
