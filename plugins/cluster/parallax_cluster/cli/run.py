"""Serve a model over all machines that join."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from parallax_cluster.config.run import RunSettings
from parallax_cluster.deploy.cluster import read_cluster_plan
from parallax_cluster.deploy.joining import check_where
from parallax_cluster.deploy.standby import wait_for_promotion
from parallax_core.api import UsageError
from parallax_core.api.cli import Config, Contacts, Look, PluginHost, from_section, new_app, open_display, tell_contacts
from parallax_core.api.node import configure_log
from parallax_core.cli.serve import ServeDisplay, run_service

if TYPE_CHECKING:
    from parallax_core.api.dialect import ServedModels

app = new_app()


@app.command()
@from_section("run", RunSettings)
def run(settings: RunSettings, config: Config) -> None:
    """Serve a model over this machine and all that join it.

    It prints the command by which other machines join, and starts as soon as the model fits on those that have. Which
    layers each gets, and how many pipelines there are, is planned by what the machines say of themselves, and again
    whenever one joins, leaves or is lost; running answers go on. When it can answer, one more line is printed:

    ready http://127.0.0.1:8000/v1 model=smollm2-135m

    With --standby-of it follows another server first, and takes its place on `parallax cluster promote`. The model and
    the goals of the plan are then those of that server. If a machine that has taken over is lost for good, the
    server whose place it took serves again with --new-term. What has no option here is set by --set, in a file or in
    the environment: see `parallax config run`. Examples:

    parallax run org/model --nodes 3

    parallax run org/model --host 0.0.0.0 --api-key-file keys --set recovery_timeout=300
    """
    follows = bool(settings.standby_of)
    if follows and settings.new_term:
        raise UsageError("--standby-of and --new-term contradict each other", "promoting a standby begins a new term")
    check_where(settings.standby_of)
    contacts = Contacts(
        links=follows,
        seeks=follows and settings.discovery,
        is_found=settings.discovery,
        stun_port=settings.stun_port,
    )
    if settings.standby_of:
        tell_contacts(contacts, offline=settings.offline, verbose=settings.verbose)
        configure_log(verbose=settings.verbose)
        settings = wait_for_promotion(settings, PluginHost.discover(config))
    shown = partial(open_display, "run", verbose=settings.verbose)
    run_service(
        settings.as_serve(), config, partial(read_cluster_plan, settings), contacts, ServeDisplay(shown, _watch)
    )


def _watch(models: ServedModels) -> Look:
    from parallax_cluster.cli.run_view import RunView

    return RunView(models).look
