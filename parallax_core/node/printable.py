"""Makes the texts in messages printable and short enough for a frame."""

from __future__ import annotations

import msgspec

from parallax_core.base.printable import make_printable
from parallax_core.contracts.service_message import ServiceMessage
from parallax_core.wire.base import MOST_NAME, MOST_TEXT
from parallax_core.wire.membership import Loading, Refusal
from parallax_core.wire.messages import Failure, Message


def tidy(message: Message) -> Message:
    """Return ``message`` with each text as one printable line, cut to the length a frame may hold."""
    match message:
        case Failure():
            peer = make_printable(message.peer, MOST_NAME)
            return msgspec.structs.replace(message, message=make_printable(message.message, MOST_TEXT), peer=peer)
        case Refusal():
            texts = {name: make_printable(getattr(message, name), MOST_TEXT) for name in ("message", "hint")}
            return msgspec.structs.replace(message, unreached=make_printable(message.unreached, MOST_NAME), **texts)
        case Loading():
            return msgspec.structs.replace(message, task=make_printable(message.task, MOST_NAME))
        case ServiceMessage():
            return message.tidy()
    return message
