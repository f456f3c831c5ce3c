"""Refuses requests with fields that an engine which schedules itself does not honour."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from parallax_core.base.errors import InvalidRequest
from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import MAX_ANSWERS, Request
from parallax_core.contracts.engine_spec import RequestField
from parallax_core.contracts.sample import Sampling
from parallax_core.contracts.token_engine import EngineInfo
from parallax_core.engine.validate import OTHER_BACKEND, LengthLimits

UNSET = Request(id=RequestId(""), prompt=(), max_tokens=None, sampling=Sampling())
"""A request with the defaults of all fields."""


@dataclass(frozen=True, slots=True)
class FieldCheck:
    """Holds requests against what an engine declares; errors name the field of `Request` or `Sampling`."""

    info: EngineInfo

    def check(self, request: Request) -> Request:
        """Return the request as the engine gets it, without what core itself does.

        Raises:
            InvalidRequest: if it can never be served.
        """
        info = self.info
        limits = LengthLimits(info.vocab_size, info.context_length)
        limits.check_prompt(request.prompt)
        most = min(MAX_ANSWERS, info.max_answers)
        if not 1 <= request.n <= most:
            raise InvalidRequest(f"n is {request.n}; it must be between 1 and {most} with this model's engine", "n")
        for name in get_args(RequestField):
            if name not in info.honours and _read(request, name) != _read(UNSET, name):
                message = f"{name} is not available: this model's engine does not support it"
                raise InvalidRequest(message, name, OTHER_BACKEND)
        if request.delivered:
            raise InvalidRequest("delivered is not available: this model's engine continues no answers", "delivered")
        if request.pooling is not None:
            message = "an embedding is not available: this model's engine gives no hidden states"
            raise InvalidRequest(message, "pooling", "serve the model with another backend")
        if request.is_seeded and info.seed == "none":
            message = "seed is not available: this model's engine cannot repeat its draws"
            raise InvalidRequest(message, "seed", OTHER_BACKEND)
        self._check_top("logprobs", request.logprobs)
        self._check_top("prompt_logprobs", request.prompt_logprobs)
        max_tokens = limits.limit_output(request)
        return replace(request, max_tokens=max_tokens, default_max_tokens=None, stop=(), timeout_s=None, waited_s=0.0)

    def _check_top(self, name: str, top: int | None) -> None:
        if top is not None and not 0 <= top <= self.info.max_logprobs:
            message = f"{name} is {top}; it must be between 0 and {self.info.max_logprobs} with this model's engine"
            raise InvalidRequest(message, name)


def _read(request: Request, name: str) -> object:
    return getattr(request if hasattr(request, name) else request.sampling, name)
