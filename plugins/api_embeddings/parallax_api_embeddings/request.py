"""Turns the validated body of an embedding request into engine requests."""

from __future__ import annotations

from parallax_api_embeddings.body_models import EmbeddingRequest
from parallax_api_embeddings.form import EmbeddingForm
from parallax_chat_requests.engine_request import read_prompts
from parallax_core.api import InvalidRequest, Request, RequestId, Sampling
from parallax_core.api.bodies import BodyReader, BodyRequest, ParsedBody, ResponseForm, check_lengths, pack


def read_embedding(reader: BodyReader, body: EmbeddingRequest, ask: BodyRequest) -> ParsedBody:
    """Read texts to embed.

    Raises:
        InvalidRequest: if it cannot be served; it names the field.
    """
    text = reader.text
    config, dimensions = text.embedding_config, body.dimensions
    if dimensions is not None and (
        config.dimensions is None or (config.dimensions and dimensions not in config.dimensions)
    ):
        known = f": it has {', '.join(map(str, config.dimensions))}" if config.dimensions else ""
        message = f"'dimensions' is {dimensions}, and embeddings of this model cannot be cut to that{known}"
        raise InvalidRequest(message, "dimensions", "leave it out")
    prompts = read_prompts(text, body.input, "input")
    plan = EmbeddingForm(
        is_base64=body.encoding_format == "base64", dimensions=dimensions, normalizes=config.normalizes
    )
    form = ResponseForm(
        model=body.model or "",
        num_answers=1,
        prompt_field="input",
        is_shown=False,
        plan=plan.pack(),
    )
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
    parsed = ParsedBody(form=form, request=request, prompts=tuple(map(pack, prompts)), seeds=(0,) * len(prompts))
    return check_lengths(parsed, ask, "input", "shorten it")
