"""Measures a backend's device in its own process: ``python -m parallax_cluster.deploy.measure PLAN``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from parallax_cluster.node.profile.device import measure_machine
from parallax_cluster.node.profile.measuring import IMPORTED, MeasuringProcess
from parallax_core.api import DevicePlan, ParallaxError
from parallax_core.api.deployment import Config, WorkerSettings, find_backends
from parallax_core.api.node import claim_output, configure_log, end_with_parent
from parallax_core.deploy.backend_options import prepare_plugins

logger = logging.getLogger(__name__)

MODULE = "parallax_cluster.deploy.measure"


class MeasurePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The backend to measure, and its options; the environment of the process has the rest."""

    backend: str
    options: tuple[str, ...] = ()
    """As in ``--backend-option``."""
    config_file: str | None = None


def make_process(plan: MeasurePlan) -> MeasuringProcess:
    """Return a process that measures as ``plan`` says, not started."""
    return MeasuringProcess([sys.executable, "-P", "-m", MODULE, msgspec.json.encode(plan).decode()])


def measure(plan: MeasurePlan) -> None:
    """Measure as ``plan`` says, unless the cache has the figures already, and print them; blocks for some seconds.

    Raises:
        ParallaxError: if the backend is not installed, or cannot be measured.
    """
    config = Config.load(Path(plan.config_file) if plan.config_file else None)
    settings = WorkerSettings(backend=plan.backend, backend_option=plan.options)
    with claim_output() as output:
        plugins = prepare_plugins(settings, config)
        [offer] = find_backends(plugins, plan.backend)
        offer.load(offer.spec.factory)
        print(IMPORTED.decode(), end="", file=output, flush=True)
        machine = measure_machine(plugins, offer, DevicePlan())
        print(msgspec.json.encode(machine).decode(), file=output, flush=True)


def main(arguments: Sequence[str] = sys.argv) -> int:
    """Run the process; return its exit code."""
    try:
        measure(msgspec.json.decode(arguments[1].encode(), type=MeasurePlan))
    except (ParallaxError, OSError) as error:  # an OSError: no disk has room for a model to measure with
        logger.warning("device cannot be measured: %s", error.message if isinstance(error, ParallaxError) else error)
        return 1
    return 0


if __name__ == "__main__":
    configure_log(verbose=False)
    end_with_parent()
    sys.exit(main())
