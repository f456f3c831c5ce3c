"""What most messages begin with."""

from __future__ import annotations

from typing import Annotated

import msgspec

from parallax_core.base.ids import Epoch, LeaseId
from parallax_core.contracts.value import LARGEST

MOST_NAME = 256
Name = Annotated[str, msgspec.Meta(max_length=MOST_NAME)]


class Leased(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What every message between a head and its stages begins with."""

    lease: Annotated[LeaseId, msgspec.Meta(ge=0, le=LARGEST)]
    epoch: Annotated[Epoch, msgspec.Meta(ge=0, le=LARGEST)]
