"""Reads the bodies by which administrators change the models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from parallax_core.api import InvalidRequest
from parallax_core.api.bodies import Strict, TextField
from parallax_core.api.dialect import read_body

MAX_BYTES = 8192
"""The largest body: it is read on the event loop."""
DRAIN_S = 300.0
"""The default of the seconds that the running requests of a model may take to end."""
LONGEST_DRAIN_S = 86400.0

ChangeAction = Literal["load", "unload", "switch", "forget"]

NameField = Annotated[TextField, Field(min_length=1, max_length=1024)]


class ChangeRequest(Strict):
    """The body of ``POST /v1/cluster/models``."""

    action: ChangeAction
    """``load`` a model beside the others, ``unload`` one, ``switch`` from one to another, or ``forget`` one that is not
    loaded."""
    model: NameField
    """The model to change: its id; to load it also a folder, a hub id such as ``org/name``, ``pypi:NAME``, or an
    alias."""
    replaces: NameField | None = None
    """For ``switch``: the id of the model to unload; needed if several are loaded."""
    drain_seconds: Annotated[float, Field(ge=0, le=LONGEST_DRAIN_S)] = DRAIN_S
    """The seconds that running requests of the model to unload may take to end."""
    drain_first: bool = False
    """For ``switch``: unload before loading, for when there is no memory for both. If loading fails, the old model is
    loaded again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WantedChange:
    """A change that an administrator asks for."""

    action: ChangeAction
    model: str
    """The model to load, unload or forget: its id, or what a source finds it by."""
    replaces: str | None = None
    """The id of the model that is unloaded in its place; None: the only one that is loaded."""
    drain_s: float = DRAIN_S
    """Seconds that the running requests of the model that is unloaded may take to end."""
    drain_first: bool = False
    """Unload before loading: when there is no memory for both."""


def read_change(data: bytes) -> WantedChange:
    """Return the change that a body asks for.

    Raises:
        InvalidRequest: if it is too large or not valid, or has a field that means nothing for its action.
    """
    if len(data) > MAX_BYTES:
        message = f"the body has {len(data)} bytes, and may have {MAX_BYTES}"
        raise InvalidRequest(message)
    body = read_body(data, ChangeRequest)
    if body.action != "switch":
        for name, value in (("replaces", body.replaces), ("drain_first", body.drain_first or None)):
            if value is not None:
                message = f"'{name}' is for switching only, and 'action' is {body.action!r}"
                raise InvalidRequest(message, name)
    return WantedChange(
        action=body.action,
        model=body.model,
        replaces=body.replaces,
        drain_s=body.drain_seconds,
        drain_first=body.drain_first,
    )
