"""The fields of requests that SGLang honours, checked and translated."""

from __future__ import annotations

import math
from typing import Any

from parallax_core.api import InvalidRequest, Request, RequestField, Sampling

HONOURED: frozenset[RequestField] = frozenset(
    {
        "logprobs",
        "prompt_logprobs",
        "priority",
        "salt",
        "top_k",
        "top_p",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
    }
)
"""SGLang's repetition penalty does not count the prompt, and its least number of tokens needs a tokenizer."""
MAX_ANSWERS = 128
MAX_LOGPROBS = 20
PENALTY = 2.0
"""The largest presence or frequency penalty, either way."""
LEAST_TEMPERATURE = 1e-6
"""SGLang takes the most probable token below this temperature."""
ADJUSTED = ("presence_penalty", "frequency_penalty", "logit_bias")
"""Fields of `Sampling` after which SGLang computes the log-probabilities that it reports."""


def check_fields(request: Request) -> None:
    """Refuse what SGLang cannot do as the fields of a request are defined.

    Raises:
        InvalidRequest: naming the field.
    """
    sampling = request.sampling
    for name in ("presence_penalty", "frequency_penalty"):
        if abs(value := getattr(sampling, name)) > PENALTY:
            raise InvalidRequest(f"{name} is {value}; with SGLang it must be from -{PENALTY:g} to {PENALTY:g}", name)
    if request.logprobs is not None and (name := _find_adjusted(sampling)):
        message = f"logprobs cannot be combined with {name}: SGLang reports them only after that is applied"
        raise InvalidRequest(message, "logprobs", f"leave out logprobs or {name}")


def list_sampling(request: Request) -> dict[str, Any]:
    """Return the ``sampling_params`` of SGLang for a request, apart from what ends the answer."""
    sampling = request.sampling
    assert request.max_tokens is not None, "core has resolved the number of tokens"
    found: dict[str, Any] = {
        "max_new_tokens": request.max_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or -1,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }
    if sampling.temperature < LEAST_TEMPERATURE:  # filters change nothing then
        found |= {"temperature": 0.0, "top_k": -1, "top_p": 1.0, "min_p": 0.0}
    if sampling.logit_bias:
        found["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias if not math.isnan(bias)}
    return found


def _find_adjusted(sampling: Sampling) -> str:
    return next((name for name in ADJUSTED if getattr(sampling, name) != getattr(Sampling(), name)), "")
