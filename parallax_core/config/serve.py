"""The section ``[serve]``, which defines the options of ``parallax serve``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from parallax_core.config.backend_option import BackendOptionTexts
from parallax_core.config.marks import STAGES
from parallax_core.config.server import ServerSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeSettings(ServerSettings):
    """The settings of a server whose stages the user chooses."""

    backend: Annotated[
        str | None,
        Meta(
            description="The backend; one for each stage as mlx,torch; by default the best for this machine.",
            extra={"metavar": "NAME"},
        ),
        STAGES,
    ] = None
    backend_option: Annotated[BackendOptionTexts, STAGES] = ()
    transport: Annotated[
        str | None,
        Meta(
            description="The transport between stages; zmq, the default for several, runs each in its own process.",
            extra={"metavar": "NAME"},
        ),
        STAGES,
    ] = None
    stages: Annotated[
        int, Meta(description="Split the model's layers into N stages.", ge=1, extra={"metavar": "N"}), STAGES
    ] = 1
    layers: Annotated[
        str | None,
        Meta(
            description="The layers of each stage, as 0-10,10-20,20-30; by default balanced by measured speed.",
            extra={"metavar": "A-B,B-C"},
        ),
        STAGES,
    ] = None
    data_parallel: Annotated[
        int, Meta(description="Serve N replicas of the whole model.", ge=1, extra={"metavar": "N"}), STAGES
    ] = 1
    spares: Annotated[
        int,
        Meta(description="Keep N workers with loaded layers, to replace lost ones.", ge=0, extra={"metavar": "N"}),
        STAGES,
    ] = 0
    device: Annotated[
        tuple[str, ...],
        Meta(
            description="The device of a stage, as the backend names it; repeat for each stage, replica by replica.",
            extra={"metavar": "DEVICE"},
        ),
        STAGES,
    ] = ()
    listen: Annotated[
        str | None,
        Meta(
            description="Start no stages here; wait at this address for `parallax worker` to join.",
            extra={"metavar": "ADDRESS"},
        ),
        STAGES,
    ] = None
    find: Annotated[
        tuple[str, ...],
        Meta(
            description="Use nodes that announce layers of the model by this join code; may be repeated.",
            extra={"metavar": "CODE"},
        ),
        STAGES,
    ] = ()
    deployment: Annotated[
        str,
        Meta(
            description="The kind of deployment; `parallax plugins` lists them. If empty, other settings choose it.",
            extra={"metavar": "NAME", "advanced": True},
        ),
    ] = ""
    python: Annotated[
        tuple[str, ...],
        Meta(
            description="Run the stages of a backend in another environment, as torch=/path/to/python.",
            extra={"metavar": "BACKEND=PYTHON"},
        ),
        STAGES,
    ] = ()
