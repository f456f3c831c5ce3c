"""The routes that list models in the form of Anthropic's API, at the paths of OpenAI's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import fastapi
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import Scope

from parallax_api_anthropic.errors import VERSION_HEADER
from parallax_api_anthropic.model_list import (
    MessageModelReply,
    MessageModelsReply,
    ModelPage,
    convert_model,
    list_models,
)
from parallax_api_anthropic.replies import MessageErrorReply
from parallax_core.api.dialect import (
    ModelEntry,
    ServedModels,
    describe_answer,
    describe_errors,
    describe_model,
    respond_with,
)

PAGE, LARGEST_PAGE = 20, 1000
"""The number of models of a page: by default, and the largest."""
Lifecycles = list[Literal["active", "deprecated", "retired"]] | None


class AnthropicRoute(APIRoute):
    """A route for requests with Anthropic's header, before another route at the same path."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match only requests with the header."""
        return super().matches(scope) if VERSION_HEADER in Headers(scope=scope) else (Match.NONE, {})


def read_page(
    limit: Annotated[int, fastapi.Query(ge=1, le=LARGEST_PAGE)] = PAGE,
    after_id: Annotated[str | None, fastapi.Query(max_length=1024)] = None,
    before_id: Annotated[str | None, fastapi.Query(max_length=1024)] = None,
    lifecycle: Annotated[Lifecycles, fastapi.Query()] = None,
    lifecycles: Annotated[Lifecycles, fastapi.Query(alias="lifecycle[]")] = None,  # as the official client has it
) -> ModelPage:
    """Return the page that a query asks for."""
    wanted = [*(lifecycle or ()), *(lifecycles or ())]
    return ModelPage(limit, after_id, before_id, has_active=not wanted or "active" in wanted)


PageQuery = Annotated[ModelPage, fastapi.Depends(read_page)]


def make_router(models: ServedModels) -> fastapi.APIRouter:
    """Return the routes. `describe_models` describes them, as others have their paths."""
    router, created = fastapi.APIRouter(route_class=AnthropicRoute), int(time.time())

    def convert(known: ModelEntry, name: str) -> MessageModelReply:
        service = known.hosted.service if known.hosted is not None else None
        limits_reasoning = service is not None and service.limits_reasoning
        return convert_model(describe_model(known, created, name), limits_reasoning=limits_reasoning)

    @router.get(
        "/v1/models",
        responses=describe_answer(MessageModelsReply) | describe_errors(401, 403, model=MessageErrorReply),
    )
    async def show_models(page: PageQuery) -> fastapi.Response:
        """Return a page of the models that are known, those that answer first, and of the LoRA adapters."""
        named = [(known, name) for known in models.all for name in models.list_names(known)]
        named += [(models.known[each.parent], each.id) for each in models.describe_adapters(created) if each.parent]
        return respond_with(list_models([convert(*each) for each in named], page))

    @router.get(
        "/v1/models/{model_id:path}",
        responses=describe_answer(MessageModelReply) | describe_errors(401, 403, 404, model=MessageErrorReply),
    )
    async def show_model(model_id: str) -> fastapi.Response:
        """Describe a model that this server knows."""
        return respond_with(convert(models.get(model_id), model_id))

    return router


def describe_models(schema: dict[str, Any], router: fastapi.APIRouter) -> None:
    """Add to the description of a server what the routes of ``router`` add to those at their paths."""
    own = get_openapi(title="", version="", routes=router.routes)
    for path, operations in own["paths"].items():
        for method, operation in operations.items():
            shared = schema["paths"][path][method]
            known = {each["name"] for each in shared.get("parameters", ())}
            added = [each for each in operation.get("parameters", ()) if each["name"] not in known]
            if added:
                shared["parameters"] = [*shared.get("parameters", ()), *added]
            for status, response in operation["responses"].items():
                if status in shared["responses"]:
                    _share(shared["responses"][status], response)


def _share(described: dict[str, Any], other: dict[str, Any]) -> None:
    """Add the body of another response to a description; where no other route is at the path, it is the same one."""
    content = described["content"]["application/json"]
    shapes = [*_list_shapes(content["schema"])]
    added = [each for each in _list_shapes(other["content"]["application/json"]["schema"]) if each not in shapes]
    if added:
        title = {name: each for name, each in content["schema"].items() if name == "title"}
        content["schema"] = {**title, "anyOf": [*shapes, *added]}


def _list_shapes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from schema.get("anyOf", [schema])
