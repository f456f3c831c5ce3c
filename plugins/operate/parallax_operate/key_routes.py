"""Lists, makes and revokes the API keys of a server."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from parallax_core.api import needs_role
from parallax_core.api.dialect import (
    ChangeRefused,
    ResponseModel,
    ServerOptions,
    describe_answer,
    describe_errors,
    respond_with,
)
from parallax_operate.key_file import KeyLimits, KeyLine, Role, add_key, limit_key, list_keys, remove_key

VARIABLE = "PARALLAX_API_KEY"
"""The environment variable of the operator's key, which no file has."""

Name = Annotated[
    str, Query(max_length=64, pattern=r"^[^\x00-\x1f\x7f#][^\x00-\x1f\x7f]*$", description="Whose key it is.")
]
Most = Annotated[int, Query(ge=0, le=10**9, description="A limit of the key, beside the server's; 0: none.")]


def read_limits(max_concurrent: Most = 0, max_per_minute: Most = 0, max_output_tokens: Most = 0) -> KeyLimits:
    """Return the limits that the parameters of a request have."""
    return KeyLimits(max_concurrent=max_concurrent, max_per_minute=max_per_minute, max_output_tokens=max_output_tokens)


Limits = Annotated[KeyLimits, Depends(read_limits)]

logger = logging.getLogger(__name__)


class KeyLimitsReply(ResponseModel):
    """Limits of keys; 0: none."""

    max_concurrent: int
    """Requests at the same time."""
    max_per_minute: int
    """Requests in a minute."""
    max_output_tokens: int
    """Tokens that running requests may generate, together."""


class KeyReply(ResponseModel):
    """An API key, but not the key itself."""

    id: str
    """The beginning of its digest."""
    role: str
    name: str | None
    """The comment before it in the file."""
    limits: KeyLimitsReply
    """Its own, beside those of each key."""


class KeysReply(ResponseModel):
    """The answer to ``GET /v1/keys``."""

    object: Literal["list"]
    file: str | None
    """The file that the server reads; null: it was started without one, and keys can be neither made nor revoked."""
    has_own_key: bool
    """Whether the operator's environment has a further key, of an administrator."""
    limits: KeyLimitsReply
    """Those of each key, as the server was started."""
    data: list[KeyReply]


class NewKeyReply(ResponseModel):
    """The answer to ``POST /v1/keys``."""

    id: str
    role: str
    name: str | None
    key: str
    """The key, which is shown this once."""


def make_key_router(options: ServerOptions) -> APIRouter:
    """Return the routes."""
    router, lock = APIRouter(), asyncio.Lock()
    has_own_key = bool(os.environ.get(VARIABLE, "").strip())

    @router.get("/v1/keys", responses=describe_answer(KeysReply) | describe_errors(401, 403))
    @needs_role("admin")
    async def get_keys() -> Response:
        """List the API keys with their roles and names, and the limits of each."""
        file = options.keys.file
        found = await asyncio.to_thread(list_keys, file) if file else []
        limits = KeyLimitsReply(options.max_concurrent, options.max_per_minute, options.max_output_tokens)
        place = os.fspath(file) if file else None
        return respond_with(KeysReply("list", place, has_own_key, limits, list(map(_show, found))))

    @router.post("/v1/keys", responses=describe_answer(NewKeyReply) | describe_errors(400, 401, 403, 409))
    @needs_role("admin")
    async def make_key(name: Name, limits: Limits, role: Role = "user") -> Response:
        """Make an API key, with limits of its own. It counts within two seconds, and is shown this once."""
        async with lock:
            key, made = await asyncio.to_thread(add_key, _find_file(options), role, name, limits)
        logger.info("API key made id=%s role=%s name=%r", made.id, made.role, made.name)
        reply = NewKeyReply(made.id, made.role, made.name or None, key)
        response = respond_with(reply)
        response.headers["Cache-Control"] = "no-store"
        return response

    @router.post(
        "/v1/keys/{key_id}/limits", responses=describe_answer(KeyReply) | describe_errors(400, 401, 403, 404, 409)
    )
    @needs_role("admin")
    async def limit(key_id: str, limits: Limits) -> Response:
        """Replace the limits of an API key, within two seconds. Running answers continue to their end."""
        async with lock:
            changed = await asyncio.to_thread(limit_key, _find_file(options), key_id, limits)
        logger.info("API key limited id=%s limits=%s", changed.id, limits)
        return respond_with(_show(changed))

    @router.delete("/v1/keys/{key_id}", responses=describe_answer(KeyReply) | describe_errors(401, 403, 404, 409))
    @needs_role("admin")
    async def revoke_key(key_id: str) -> Response:
        """Revoke an API key, within two seconds. Running answers continue to their end."""
        async with lock:
            gone = await asyncio.to_thread(remove_key, _find_file(options), key_id, has_other_admin=has_own_key)
        logger.info("API key revoked id=%s role=%s name=%r", gone.id, gone.role, gone.name)
        return respond_with(_show(gone))

    return router


def _show(key: KeyLine) -> KeyReply:
    return KeyReply(key.id, key.role, key.name or None, KeyLimitsReply(**asdict(key.limits)))


def _find_file(options: ServerOptions) -> Path:
    """Return the file of keys.

    Raises:
        ChangeRefused: if the server was started without one.
    """
    if (file := options.keys.file) is None:
        raise ChangeRefused("this server has no file of API keys", "start it with --api-key-file FILE")
    return file
