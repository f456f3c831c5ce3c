"""The limits of adapters: the section ``[adapters]`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterSettings:
    """The settings of LoRA adapters."""

    max_adapters: Annotated[
        int, Meta(description="The most adapters that are loaded; the least recently used makes room.", ge=1)
    ] = 16
    max_per_key: Annotated[
        int,
        Meta(
            description="The most adapters that one API key, or one address, has loaded; its least recently used"
            " makes room. 0: as many as are loaded at all.",
            ge=0,
        ),
    ] = 0
    hub: Annotated[
        tuple[str, ...],
        Meta(
            description="The adapters that may be fetched from a hub, as patterns such as org/*, separated by commas."
        ),
    ] = ()
    max_rank: Annotated[int, Meta(description="The largest rank of an adapter.", ge=1)] = 256
    reserve: Annotated[
        bool,
        Meta(
            description="Keep memory on each stage for max_adapters adapters of max_rank on all matrices but those of"
            " experts, and plan with it; else adapters take what is free."
        ),
    ] = False
    runtime_loading: Annotated[
        bool, Meta(description="Let administrators load and unload adapters while the server runs.")
    ] = True


class Chosen:
    """The settings of this process, set when it is configured."""

    def __init__(self) -> None:
        self.settings = AdapterSettings()


CHOSEN = Chosen()
"""The settings of this process."""
