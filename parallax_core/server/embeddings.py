"""The route ``POST /v1/embeddings``."""

from __future__ import annotations

import base64
import math
import secrets
import sys
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

import fastapi
import msgspec
from fastapi.responses import Response

from parallax_core.base.errors import BackendFailed, InvalidRequest
from parallax_core.contracts.dialect import Dialect
from parallax_core.contracts.surface import needs_role
from parallax_core.contracts.tensor import Tensor
from parallax_core.server.body_messages import EmbeddingForm, ParsedBody
from parallax_core.server.embedding_models import EmbeddingReply, EmbeddingRequest, EmbeddingUsage, TextEmbedding
from parallax_core.server.json_pieces import HOLE, to_json, write_list, write_object
from parallax_core.server.json_response import respond
from parallax_core.server.openapi import describe_answer, describe_body, describe_errors
from parallax_core.server.options import ServerOptions
from parallax_core.server.response import ResponseFlow, answer_whole
from parallax_core.server.served_models import ServedModels

AT_ONCE = 256
"""The most inputs of one body that are submitted at the same time: more would find no room to wait."""


@dataclass(frozen=True, slots=True)
class EmbeddingResponse:
    """One request body, and the embeddings of its inputs."""

    reading: ParsedBody
    submit: Callable[[ParsedBody], Awaitable[ResponseFlow]]
    flows: list[ResponseFlow] = field(default_factory=list)

    async def collect(self) -> Response:
        """Return all embeddings, in the order of the inputs."""
        form = self.reading.form
        found: dict[int, array[float]] = {}
        assert form.embedding is not None
        for begin, part in _divide(self.reading):
            flow = await self.submit(part)
            self.flows.append(flow)
            async for number, delta in flow.collect():
                if delta.embedding is not None:
                    found[begin + number] = finish_embedding(delta.embedding, form.embedding)
        num_tokens = sum(flow.count_tokens().prompt for flow in self.flows)
        if len(found) < len(self.reading.prompts):
            raise BackendFailed("the engine has returned no embedding")
        whole = EmbeddingReply(model=form.model, usage=EmbeddingUsage(num_tokens, num_tokens), data=HOLE)
        return respond(write_object(whole, write_list(_write_items(form.embedding, found))))

    def close(self) -> None:
        """End what has not ended. Idempotent."""
        for flow in self.flows:
            flow.close()


def _divide(reading: ParsedBody) -> Iterator[tuple[int, ParsedBody]]:
    """Yield the body in parts of `AT_ONCE` inputs, each with the index of its first input."""
    for begin in range(0, len(reading.prompts), AT_ONCE):
        prompts, seeds = reading.prompts[begin : begin + AT_ONCE], reading.seeds[begin : begin + AT_ONCE]
        yield begin, msgspec.structs.replace(reading, prompts=prompts, seeds=seeds)


def _write_items(form: EmbeddingForm, found: Mapping[int, array[float]]) -> Iterator[bytes]:
    for index, values in sorted(found.items()):
        yield to_json(TextEmbedding(index=index, embedding=_encode(values, form)))


def finish_embedding(tensor: Tensor, form: EmbeddingForm) -> array[float]:
    """Return the numbers of an embedding in single precision: cut, then normalized, as the form says.

    Raises:
        InvalidRequest: if it has fewer numbers than the client asks for.
        BackendFailed: if a number is NaN or infinite.
    """
    values = _read_floats(tensor)
    if form.dimensions is not None:
        if form.dimensions > len(values):
            message = f"'dimensions' is {form.dimensions}, and embeddings of this model have {len(values)}"
            raise InvalidRequest(message, "dimensions")
        values = values[: form.dimensions]
    length = math.hypot(*values)
    if not math.isfinite(length):
        raise BackendFailed("the embedding is not made of finite numbers", "choose another --dtype, such as float32")
    if form.normalizes and length:
        values = array("f", [value / length for value in values])
    return values


def _read_floats(tensor: Tensor) -> array[float]:
    if tensor.dtype != "float32":
        from parallax_core.node.dtypes import convert

        tensor = convert(tensor, "float32")
    values = array("f")
    values.frombytes(tensor.data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _encode(values: array[float], form: EmbeddingForm) -> str | list[float]:
    if not form.is_base64:
        return values.tolist()
    if sys.byteorder == "big":
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode()


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the dialect for a server."""
    del options
    return Dialect(routers=(make_router(models),))


def make_router(models: ServedModels) -> fastapi.APIRouter:
    """Return the route for ``models``."""
    router = fastapi.APIRouter()

    @router.post(
        "/v1/embeddings",
        responses=describe_answer(EmbeddingReply) | describe_errors(400, 401, 403, 404, 408, 413, 429, 500, 503),
        openapi_extra=describe_body(EmbeddingRequest),
    )
    @needs_role("user")
    async def create_embeddings(http: fastapi.Request) -> Response:
        """Return the embeddings of one text or several."""
        service = await models.find(http)
        reading = await service.read("embedding", http)
        name = f"embd-{secrets.token_hex(12)}"
        response = EmbeddingResponse(reading, lambda part: service.submit(part, name, http))
        return await answer_whole(http, response.collect(), response)

    return router
