"""Refuses requests that a replica can never serve, before they take resources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax_core.base.errors import InvalidRequest
from parallax_core.contracts.capability import Capability
from parallax_core.contracts.engine import MAX_ANSWERS, Pooling, Request
from parallax_core.contracts.stage import StageInfo

OTHER_BACKEND = "leave it out, or serve the model with another backend"


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """Refuses prompts that do not fit the model, and answers longer than it can hold."""

    vocab_size: int
    max_length: int
    """The longest sequence that can be held, in tokens."""

    def check_prompt(self, prompt: tuple[int, ...]) -> None:
        """Raise InvalidRequest if the prompt is empty, too long, or has a token that the model lacks."""
        if not prompt:
            message = "the prompt is empty"
            raise InvalidRequest(message, "prompt")
        if len(prompt) >= self.max_length:
            message = f"the prompt has {len(prompt)} tokens; this model can hold {self.max_length} in all"
            raise InvalidRequest(message, "prompt", "shorten it")
        if min(prompt) < 0 or max(prompt) >= self.vocab_size:
            wrong = min(prompt) if min(prompt) < 0 else max(prompt)
            message = f"the prompt has the token {wrong}; this model's tokens are 0 to {self.vocab_size - 1}"
            raise InvalidRequest(message, "prompt")

    def limit_output(self, request: Request) -> int:
        """Return the most tokens an answer to ``request`` may have; raise InvalidRequest if it asks for too many."""
        most = self._limit_output(request)
        if request.sampling.min_tokens > most:
            message = f"min_tokens is {request.sampling.min_tokens}, but an answer can have only {most} tokens"
            raise InvalidRequest(message, "min_tokens", f"ask for at most {most}")
        return most

    def _limit_output(self, request: Request) -> int:
        room = self.max_length - len(request.prompt)
        if request.max_tokens is None:
            return min(room, max(request.default_max_tokens or room, request.sampling.min_tokens))
        if request.max_tokens < 1:
            message = f"max_tokens is {request.max_tokens}; it must be at least 1"
            raise InvalidRequest(message, "max_tokens")
        if request.max_tokens > room:
            message = (
                f"{len(request.prompt)} prompt tokens and {request.max_tokens} new ones are more than "
                f"the {self.max_length} tokens this model can hold"
            )
            raise InvalidRequest(message, "max_tokens", f"ask for at most {room}, or leave it out")
        return request.max_tokens


@dataclass(frozen=True, slots=True)
class RequestValidator:
    """Refuses requests that the stages can never serve; the error names the field of `Request` or `Sampling`.

    A prompt's length and tokens are checked here for every caller. A server checks earlier only what it has to know to
    read a body; a stage checks its input again, since it need not trust the head.
    """

    stages: tuple[StageInfo, ...]
    max_length: int
    """The longest sequence that the stages can hold, in tokens."""

    def check(self, request: Request) -> int:
        """Return the most tokens an answer to ``request`` may have.

        Raises:
            InvalidRequest: if it can never be served.
        """
        limits = LengthLimits(self.stages[-1].vocab_size, self.max_length)
        limits.check_prompt(request.prompt)
        if not 1 <= request.n <= MAX_ANSWERS:
            raise InvalidRequest(f"n is {request.n}; it must be between 1 and {MAX_ANSWERS}", "n")
        self._check_logprobs("logprobs", request.logprobs)
        self._check_logprobs("prompt_logprobs", request.prompt_logprobs)
        if request.adapter and not all(_has(stage, "adapters") for stage in self.stages):
            message = f"the adapter {request.adapter!r} cannot be used: this model's backend does not support adapters"
            raise InvalidRequest(message, "adapter", "ask for the model itself")
        if request.grammar is not None:
            self._check_grammar(request)
        if request.pooling is not None:
            self._check_pooling(request)
        max_output = limits.limit_output(request)
        if request.delivered:
            self._check_delivered(request, max_output)
        return max_output

    def _check_delivered(self, request: Request, max_output: int) -> None:
        """Check the tokens of answers that go on: all answers begin with one draw, so each has at least one token."""
        lengths = [len(tokens) for tokens in request.delivered]
        if len(lengths) != request.n or not all(lengths):
            message = f"delivered has answers of {lengths} tokens; each of the {request.n} answers needs at least one"
            raise InvalidRequest(message, "delivered")
        most = max_output if request.max_tokens is not None else max_output - 1  # else the room here ends it
        longest = max((each for index, each in enumerate(lengths) if index not in request.ended), default=0)
        if longest > most:
            message = f"delivered has an answer of {longest} tokens, which has not ended; it can have only {max_output}"
            raise InvalidRequest(message, "delivered")
        size = self.stages[-1].vocab_size
        if any(min(tokens) < 0 or max(tokens) >= size for tokens in request.delivered):
            raise InvalidRequest(f"delivered has tokens outside of 0 to {size - 1}", "delivered")

    def _check_grammar(self, request: Request) -> None:
        if not take_grammars(self.stages):
            message = "a grammar is not available: this model's backend draws without masks"
            raise InvalidRequest(message, "grammar", OTHER_BACKEND)
        if not request.stop_ids:
            message = "a grammar needs a token that ends the answer, and the request has none"
            raise InvalidRequest(message, "grammar", "leave out ignore_eos, or name stop tokens")

    def _check_pooling(self, request: Request) -> None:
        poolings = list_poolings(self.stages)
        if not poolings:
            message = "an embedding is not available: this model's backend gives no hidden states"
            raise InvalidRequest(message, "pooling", "serve the model with another backend")
        if request.pooling not in poolings:
            message = "an embedding by the mean is not available: this model's backend does not sum hidden states"
            raise InvalidRequest(message, "pooling", "serve the model with another backend")
        if request.n > 1 or request.delivered:
            raise InvalidRequest("an embedding is only for a single answer, from its beginning", "pooling")

    def _check_logprobs(self, name: str, top: int | None) -> None:
        last = self.stages[-1]
        if top is None:
            return
        if not 0 <= top <= last.vocab_size:
            raise InvalidRequest(f"{name} is {top}; it must be between 0 and {last.vocab_size}", name)
        if not _has(last, "logprobs"):
            message = f"{name} is not available: this model's backend computes no log-probabilities"
            raise InvalidRequest(message, name, OTHER_BACKEND)


def take_grammars(stages: Sequence[StageInfo]) -> bool:
    """Return whether stages, if there are any, serve requests with a grammar."""
    return all(_has(stage, "masks") for stage in stages[-1:])


def list_poolings(stages: Sequence[StageInfo]) -> tuple[Pooling, ...]:
    """Return how stages make embeddings; all ways if there are no stages yet."""
    if not all(_has(stage, "hidden") for stage in stages[-1:]):
        return ()
    return ("last", "mean") if all(_has(stage, "hidden_sums") for stage in stages[-1:]) else ("last",)


def _has(stage: StageInfo, capability: Capability) -> bool:
    return capability in stage.capabilities
