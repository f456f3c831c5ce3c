"""The field that most messages begin with."""

from __future__ import annotations

from typing import Annotated

import msgspec

from parallax_core.base.ids import Epoch
from parallax_core.contracts.value import LARGEST

MOST_NAME = 256
"""The most characters in a name."""
Name = Annotated[str, msgspec.Meta(max_length=MOST_NAME)]
MOST_TEXT = 4096
"""The most characters in a text."""
Text = Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]
PeerKey = Annotated[bytes, msgspec.Meta(max_length=256)]
"""The key of a node, as its transport writes it."""


class StageMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The first field of every message between a head and its stages.

    The link says which head it is: a stage ends with the link to its head.
    """

    epoch: Annotated[Epoch, msgspec.Meta(ge=0, le=LARGEST)]
