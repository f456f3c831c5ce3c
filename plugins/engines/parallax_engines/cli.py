"""Install, list and remove engines, such as vLLM."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from typing import Annotated

import typer

from parallax_core.api import BackendSpec, EngineBuild, EngineSpec, UnknownName
from parallax_core.api.cli import PluginHost, UsageError, make_display, new_app, print_table
from parallax_core.api.deployment import Offer, probe
from parallax_engines.environment import find_environment
from parallax_engines.install import EngineInstall, choose_build, remove_environment

app = new_app("Install, list and remove engines, such as vLLM, in environments of their own.")

EngineArgument = Annotated[str, typer.Argument(help="The backend of the engine, such as vllm.")]


@app.command("list")
def list_engines() -> None:
    """List the engines of backends, with releases and environments."""
    host = PluginHost.prepare()
    rows = [_describe(offer, load_engine(offer)) for offer in list_offers(host)]
    titles = ("ENGINE", "SUPPORTED", "INSTALLED", "FOLDER")
    print_table(titles, sorted(rows), empty="no installed backend has an engine: pip install parallax-backend-vllm")


@app.command()
def install(
    name: EngineArgument,
    cpu: Annotated[bool, typer.Option("--cpu", help="Install the build for CPUs.")] = False,
    cuda: Annotated[
        bool, typer.Option("--cuda", help="Install the build for NVIDIA GPUs; the default where there is one.")
    ] = False,
    release: Annotated[
        str, typer.Option("--release", metavar="VERSION", help="Install this release; by default the newest supported.")
    ] = "",
    python: Annotated[
        str, typer.Option("--python", metavar="PYTHON", help="Make the environment from this interpreter.")
    ] = sys.executable,
) -> None:
    """Make the environment of an engine. `parallax serve --backend NAME` then uses it.

    It has the engine, and this Parallax with the backend. An environment that is there already is made anew; one that
    cannot be completed is removed.
    """
    if cpu and cuda:
        raise UsageError("--cpu and --cuda are two builds of the engine", "leave one of them out")
    offer = find_offer(PluginHost.prepare(), name)
    spec = load_engine(offer)
    build: EngineBuild = "cpu" if cpu else "cuda" if cuda else choose_build(spec)
    for step in spec.builds.get(build, ()):
        if step.note:
            print(f"note: {step.note}", file=sys.stderr)
    with make_display() as display:
        environment = EngineInstall(
            backend=name,
            spec=spec,
            distribution=offer.plugin.distribution,
            build=build,
            release=release,
            python=python,
            progress=display,
        ).run()
    print(f"{name} {environment.read_version(spec.distributions)} ({build}) is installed in {environment.folder}")


@app.command()
def remove(name: EngineArgument) -> None:
    """Remove the environment of an engine."""
    freed = remove_environment(name)
    print(f"removed {name}, {freed / 10**6:.0f} MB freed")


def list_offers(host: PluginHost) -> list[Offer[BackendSpec]]:
    """Return the backends that have an engine."""
    return [offer for offer in host.backends().offers if offer.spec.engine is not None]


def find_offer(host: PluginHost, name: str) -> Offer[BackendSpec]:
    """Return the backend of that name, which has an engine.

    Raises:
        UnknownName: if there is no such backend, or it has none.
    """
    known = {offer.spec.name: offer for offer in list_offers(host)}
    if name not in known:
        there = f"there is: {', '.join(sorted(known))}" if known else "there is none"
        message = f"no installed backend has an engine {name!r}; {there}"
        near = get_close_matches(name, known, n=1)
        install = f"first install its plugin: pip install parallax-backend-{name}"
        raise UnknownName(message, f"did you mean {near[0]!r}?" if near else install)
    return known[name]


def load_engine(offer: Offer[BackendSpec]) -> EngineSpec:
    """Return the description of a backend's engine."""
    assert offer.spec.engine is not None, "only backends with an engine are listed"
    return offer.load(offer.spec.engine)


def _describe(offer: Offer[BackendSpec], spec: EngineSpec) -> tuple[str, str, str, str]:
    environment = find_environment(offer.spec.name)
    if environment is not None:
        version = f"{environment.read_version(spec.distributions)} ({environment.note.build})"
        return offer.spec.name, spec.supported, version, str(environment.folder)
    beside = "beside Parallax" if probe(offer).ok else ""
    return offer.spec.name, spec.supported, "yes" if beside else "no", beside
