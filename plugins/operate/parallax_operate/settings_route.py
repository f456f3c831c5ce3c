"""Lists every setting of a server and its origin, as ``parallax config`` does."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

from fastapi import APIRouter
from fastapi.responses import Response

from parallax_core.api import Settings, ShownSetting, UnknownName, needs_role
from parallax_core.api.dialect import ResponseModel, describe_answer, describe_errors, respond_with


class SettingReply(ResponseModel):
    """A setting."""

    section: str
    key: str
    value: Any
    """Of a secret, ``***`` if it is set."""
    origin: Literal["default", "file", "environment", "flag"]
    place: str | None
    """The path of the file, the name of the variable, or the option; null for a default."""
    expected: str
    description: str
    secret: bool


class SettingsReply(ResponseModel):
    """The answer to ``GET /v1/settings``."""

    object: Literal["list"]
    file: str | None
    """The configuration file in use."""
    data: list[SettingReply]


def make_settings_router(find: Callable[[], Settings | None]) -> APIRouter:
    """Return the route that shows the configuration of ``find``."""
    router = APIRouter()

    @router.get("/v1/settings", responses=describe_answer(SettingsReply) | describe_errors(401, 403, 404))
    @needs_role("admin")
    async def list_settings() -> Response:
        """List every setting, its value and where that comes from; of a secret, only whether it is set."""
        if (config := find()) is None:
            raise UnknownName("this server was started without a configuration")
        file = os.fspath(config.file) if config.file else None
        return respond_with(SettingsReply(object="list", file=file, data=list(map(_show, config.explain()))))

    return router


def _show(setting: ShownSetting) -> SettingReply:
    return SettingReply(
        setting.section,
        setting.key,
        setting.value,
        setting.origin,
        setting.place or None,
        setting.expected,
        setting.description,
        setting.is_secret,
    )
