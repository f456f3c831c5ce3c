"""Opens Anthropic's Messages API for a server."""

from __future__ import annotations

from functools import partial

from parallax_api_anthropic import messages, model_routes
from parallax_api_anthropic.errors import FORM
from parallax_api_anthropic.model_routes import describe_models
from parallax_core.api import Dialect
from parallax_core.api.dialect import ServedModels, ServerOptions


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the dialect for a server."""
    del options
    listing = model_routes.make_router(models)
    return Dialect(
        routers=(listing, messages.make_router(models)),
        errors=FORM,
        describe=partial(describe_models, router=listing),
    )
