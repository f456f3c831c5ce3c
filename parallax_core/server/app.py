"""The HTTP application."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import JSONResponse

from parallax_core.server import chat
from parallax_core.server.auth import KeyCheck
from parallax_core.server.chat import Served
from parallax_core.server.errors import UnknownModel, add_handlers
from parallax_core.server.limit import BodyLimit


def make_app(served: Served, keys: Collection[str] = ()) -> FastAPI:
    """Return the application for one model; with ``keys``, every route but ``/health`` asks for one of them."""
    app = FastAPI(title="Parallax", docs_url=None, redoc_url=None, redirect_slashes=False)
    add_handlers(app)
    app.include_router(_make_basics(served))
    app.include_router(chat.make_router(served))
    app.add_middleware(BodyLimit)
    if keys:
        app.add_middleware(KeyCheck, keys=keys)
    return app


def _make_basics(served: Served) -> APIRouter:
    router = APIRouter()
    model = {"id": served.model_id, "object": "model", "created": int(time.time()), "owned_by": "parallax"}

    @router.get("/health")
    async def health() -> JSONResponse:
        """200 when the engine can answer, else 503 with the reason."""
        state = served.engine.health()
        return JSONResponse({"status": state.state, "reason": state.reason}, 200 if state.state == "ready" else 503)

    @router.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """List the one model served here."""
        return {"object": "list", "data": [model]}

    @router.get("/v1/models/{model_id:path}")
    async def retrieve_model(model_id: str) -> dict[str, Any]:
        """Describe the model, if it is the one served here."""
        if model_id != served.model_id:
            message = f"the model '{model_id}' does not exist"
            raise UnknownModel(message, f"this server has '{served.model_id}'")
        return model

    return router
