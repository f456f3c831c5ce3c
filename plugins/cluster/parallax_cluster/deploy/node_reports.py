"""Makes a worker's reporter, which measures the node and reports to its head."""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from parallax_cluster.deploy.measure import MeasurePlan, make_process
from parallax_cluster.labels import read_labels
from parallax_cluster.node.profile.device import MachineProfile, find_machine
from parallax_cluster.node.profile.link_prober import LinkProber
from parallax_cluster.node.profile.measuring import MeasuringProcess
from parallax_cluster.node.profile.report import list_stored, make_report
from parallax_cluster.node.profile.reporter import NodeReporter
from parallax_cluster.versions import list_versions
from parallax_cluster.wire.profile import MOST_VERSIONS, NodeReport
from parallax_core.api import BackendSpec, DevicePlan, ParallaxError
from parallax_core.api.deployment import Catalog, Offer, PluginHost, WorkerSettings

logger = logging.getLogger(__name__)


def make_reporter(
    settings: WorkerSettings,
    config_file: Path | None,
    plugins: PluginHost,
    offers: Sequence[Offer[BackendSpec]],
    prober: LinkProber,
) -> NodeReporter:
    """Return the reporter of a worker that opens stages with the backends of ``offers``, the best first.

    A worker that a server started for itself measures nothing unless it is told to, since it may share the machine with
    others that work; it reports what was measured before. The links of other workers are measured by ``prober``.
    """
    if not offers:
        return NodeReporter(lambda: None)
    if settings.supervised and not settings.as_joined:
        return NodeReporter(ReportMaker(settings, plugins, offers[0]))
    file = str(config_file) if config_file else None
    plan = MeasurePlan(backend=offers[0].spec.name, options=settings.backend_option, config_file=file)
    measuring = make_process(plan)
    return NodeReporter(ReportMaker(settings, plugins, offers[0], measuring), measuring, prober)


class ReportMaker:
    """Makes the reports of a worker, and says once why it cannot."""

    def __init__(
        self,
        settings: WorkerSettings,
        plugins: PluginHost,
        offer: Offer[BackendSpec],
        measuring: MeasuringProcess | None = None,
    ) -> None:
        """Make the first report from what ``measuring`` has found."""
        self._plugins = plugins
        self._offer = offer
        self._measuring = measuring
        self._catalog = Catalog(plugins)
        self._memory = settings.memory_bytes
        self._labels = read_labels(settings.label, "--label")
        self._max_context = settings.max_context or 0
        self._is_silent = settings.supervised
        self._is_warm = False

    def __call__(self) -> NodeReport | None:
        """Return the report; None if the device is not known.

        The first call imports the framework of the backend, so that a node with a report is one that loads layers
        without importing it while a pipeline waits.
        """
        try:
            return self._make()
        except ParallaxError as error:
            if not self._is_silent:
                logger.warning("this node cannot say how fast it is: %s", error.message)
            self._is_silent = True
            return None

    def _make(self) -> NodeReport | None:
        if (machine := self._find_machine()) is None:
            return None
        stored, leases = list_stored(self._plugins, self._catalog), self._offer.spec.leases
        versions = tuple(list_versions(self._plugins).items())[:MOST_VERSIONS]
        report = make_report(machine, stored, memory=self._memory, leases=leases)
        said = {"labels": self._labels, "versions": versions, "max_context": self._max_context}
        return msgspec.structs.replace(report, **said)

    def _find_machine(self) -> MachineProfile | None:
        if not self._is_warm:
            self._offer.load(self._offer.spec.factory)
            self._is_warm = True
            gc.freeze()  # modules stay: scanning them, and freeing them at the end, takes seconds
        if self._measuring is not None and (machine := self._measuring.machine):
            self._measuring = None
            return machine
        return find_machine(self._plugins, self._offer, DevicePlan())
