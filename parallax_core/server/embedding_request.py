"""Turns the validated body of an embedding request into engine requests."""

from __future__ import annotations

from parallax_core.base.errors import InvalidRequest
from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import Request
from parallax_core.contracts.sample import Sampling
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.server.body_messages import EmbeddingForm, ParsedBody, ResponseForm, pack
from parallax_core.server.embedding_models import EmbeddingRequest
from parallax_core.server.engine_request import read_prompts


def read_embedding(text: ModelTokenizer, body: EmbeddingRequest) -> ParsedBody:
    """Return the parsed body of an embedding request.

    Raises:
        InvalidRequest: if it cannot be served; it names the field.
    """
    config, dimensions = text.embedding_config, body.dimensions
    if dimensions is not None and (
        config.dimensions is None or (config.dimensions and dimensions not in config.dimensions)
    ):
        known = f": it has {', '.join(map(str, config.dimensions))}" if config.dimensions else ""
        message = f"'dimensions' is {dimensions}, and embeddings of this model cannot be cut to that{known}"
        raise InvalidRequest(message, "dimensions", "leave it out")
    prompts = read_prompts(text, body.input, "input")
    shape = EmbeddingForm(
        is_base64=body.encoding_format == "base64", dimensions=dimensions, normalizes=config.normalizes
    )
    form = ResponseForm(model=body.model or "", num_answers=1, prompt_field="input", is_shown=False, embedding=shape)
    request = Request(
        id=RequestId(""),
        prompt=(),
        max_tokens=1,
        sampling=Sampling(temperature=0),
        priority=body.priority or 0,
        timeout_s=body.timeout,
        salt=body.cache_salt or "",
        pooling=config.pooling,
    )
    return ParsedBody(form=form, request=request, prompts=tuple(map(pack, prompts)), seeds=(0,) * len(prompts))
