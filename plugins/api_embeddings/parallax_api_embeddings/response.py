"""Collects the embeddings of a body, and writes its answer."""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from parallax_api_embeddings.body_models import EmbeddingReply, EmbeddingUsage, TextEmbedding
from parallax_api_embeddings.form import EmbeddingForm
from parallax_core.api import BackendFailed, InvalidRequest, Tensor
from parallax_core.api.bodies import ParsedBody, to_json
from parallax_core.api.dialect import HOLE, ResponseFlow, read_floats, write_list, write_object

AT_ONCE = 256
"""The most inputs of one body that are submitted at the same time: more would find no room to wait."""


@dataclass(frozen=True, slots=True)
class EmbeddingResponse:
    """One request body, and the embeddings of its inputs."""

    reading: ParsedBody
    submit: Callable[[ParsedBody], Awaitable[ResponseFlow]]
    flows: list[ResponseFlow] = field(default_factory=list)

    async def collect(self) -> Iterator[bytes]:
        """Return the JSON of all embeddings, in the order of the inputs, in pieces."""
        form = EmbeddingForm.unpack(self.reading.form.plan)
        found: dict[int, array[float]] = {}
        for begin, part in _divide(self.reading):
            flow = await self.submit(part)
            self.flows.append(flow)
            async for number, delta in flow.collect():
                if delta.embedding is not None:
                    found[begin + number] = finish_embedding(delta.embedding, form)
        num_tokens = sum(flow.count_tokens().prompt for flow in self.flows)
        if len(found) < len(self.reading.prompts):
            raise BackendFailed("the engine has returned no embedding")
        whole = EmbeddingReply(model=self.reading.form.model, usage=EmbeddingUsage(num_tokens, num_tokens), data=HOLE)
        return write_object(whole, write_list(_write_items(form, found)))

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
    values = read_floats(tensor)
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


def _encode(values: array[float], form: EmbeddingForm) -> str | list[float]:
    if not form.is_base64:
        return values.tolist()
    if sys.byteorder == "big":
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode()
