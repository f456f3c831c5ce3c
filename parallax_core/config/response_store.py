"""The settings of ``[serve]`` about kept responses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

ResponseFile = Annotated[
    Path | None, Meta(description="The file of kept responses; by default memory.", extra={"metavar": "FILE"})
]
ResponseSize = Annotated[
    float,
    Meta(description="The size of all kept responses, in MiB; 0 keeps none.", ge=0, le=2**20, extra={"metavar": "MIB"}),
]
ResponseHours = Annotated[
    float,
    Meta(description="Hours to keep a response after its last use.", gt=0, le=10**6, extra={"metavar": "HOURS"}),
]
