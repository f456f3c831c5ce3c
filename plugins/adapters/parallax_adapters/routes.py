"""The routes that load and unload LoRA adapters, compatible with vLLM's."""

from __future__ import annotations

import hashlib

import fastapi
from fastapi.responses import JSONResponse, PlainTextResponse

from parallax_adapters.changes import LoadRequest, UnloadRequest, read_change
from parallax_adapters.limits import Wish
from parallax_adapters.registry import AdapterRegistry, AlreadyLoaded
from parallax_core.api import InvalidRequest, needs_role
from parallax_core.api.dialect import describe_body, describe_errors, error_body


def make_router(registry: AdapterRegistry) -> fastapi.APIRouter:
    """Return the routes."""
    router, errors = fastapi.APIRouter(), describe_errors(400, 401, 403, 404, 413, 503)

    @router.post("/v1/load_lora_adapter", responses=errors, openapi_extra=describe_body(LoadRequest))
    @needs_role("admin")
    async def load_adapter(http: fastapi.Request) -> fastapi.Response:
        """Load a LoRA adapter, and serve it as a model of its name."""
        _check_allowed(registry)
        body = read_change(await http.body(), LoadRequest)
        wish = Wish(
            name=body.lora_name,
            place=body.lora_path,
            base=body.base_model_name or "",
            replaces=bool(body.load_inplace),
            pins=bool(body.pinned),
            owner=_name_client(http),
        )
        try:
            await registry.load(wish)
        except AlreadyLoaded as error:
            return _answer(400, "InvalidUserInput", error)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    @router.post("/v1/unload_lora_adapter", responses=errors, openapi_extra=describe_body(UnloadRequest))
    @needs_role("admin")
    async def unload_adapter(http: fastapi.Request) -> fastapi.Response:
        """Stop serving a LoRA adapter; its running requests go on."""
        _check_allowed(registry)
        name = read_change(await http.body(), UnloadRequest).lora_name
        if name not in registry.loaded:
            missing = InvalidRequest(f"The lora adapter '{name}' cannot be found.", "lora_name")
            return _answer(404, "NotFoundError", missing)
        await registry.unload(name)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")

    return router


def _answer(status: int, kind: str, error: InvalidRequest) -> fastapi.Response:
    """Return an error in vLLM's words, by which its clients tell that they have nothing to do."""
    body = error_body(status, error.message, error.param, hint=error.hint)
    body["error"]["type"] = kind
    return JSONResponse(body, status)


def _name_client(http: fastapi.Request) -> str:
    """Return what tells one client from others: its key, else its address."""
    key = http.headers.get("authorization") or http.headers.get("x-api-key")
    return hashlib.sha256(key.encode()).hexdigest() if key else http.client.host if http.client else ""


def _check_allowed(registry: AdapterRegistry) -> None:
    if not registry.settings.runtime_loading:
        message = "adapters cannot be loaded or unloaded while this server runs"
        raise InvalidRequest(message, None, "an operator can allow it with PARALLAX_ADAPTERS__RUNTIME_LOADING=true")
