"""Opens Anthropic's Messages API for a server."""

from __future__ import annotations

from functools import partial
from typing import get_args

from parallax_core.contracts.dialect import Dialect
from parallax_core.server import message_model_routes, messages
from parallax_core.server.message_errors import FORM
from parallax_core.server.message_model_routes import describe_models
from parallax_core.server.message_replies import MessageEvent
from parallax_core.server.options import ServerOptions
from parallax_core.server.served_models import ServedModels


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the dialect for a server."""
    del options
    listing = message_model_routes.make_router(models)
    return Dialect(
        routers=(listing, messages.make_router(models)),
        schemas=get_args(MessageEvent),
        errors=FORM,
        describe=partial(describe_models, router=listing),
    )
