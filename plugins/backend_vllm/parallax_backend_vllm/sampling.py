"""Translates requests into vLLM's sampling parameters, and its outputs into deltas."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from parallax_core.api import Delta, InvalidRequest, Reason, Request, TokenLogprob

REASONS: Mapping[str, Reason] = {"stop": "stop", "length": "length", "abort": "aborted"}
"""How vLLM names the ends of answers; any other one is an error."""
SEEDS = 2**63
"""vLLM's generators take seeds below this."""


def make_params(request: Request, index: int) -> Any:  # noqa: ANN401 -- a type of vLLM
    """Return the parameters of answer ``index`` of a request.

    Only the first answer computes the log-probabilities of the prompt.

    Raises:
        InvalidRequest: if vLLM refuses them.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling, max_tokens = request.sampling, request.max_tokens or 1
    try:
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=find_seed(sampling.seed, index) if sampling.temperature else None,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            logit_bias=dict(sampling.logit_bias) or None,
            stop_token_ids=sorted(request.stop_ids),
            ignore_eos=True,  # the end-of-sequence token is in stop_ids, unless the client ignores it
            max_tokens=max_tokens,
            min_tokens=min(sampling.min_tokens, max_tokens),
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs if index == 0 else None,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
    except ValueError as error:
        raise InvalidRequest(f"vLLM refuses the request: {describe_refusal(error)}") from error


def find_seed(seed: int, index: int) -> int:
    """Return the seed of answer ``index`` of a request with ``seed``.

    The first answer has the request's own. The others have hashes, so that they are not those to requests with the next
    seeds.
    """
    if not index:
        return seed % SEEDS
    digest = hashlib.blake2b(f"{seed} {index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % SEEDS


def describe_refusal(error: Exception) -> str:
    """Return the first line of an error of vLLM, without the details that pydantic adds."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def read_reason(name: str | None) -> Reason | None:
    """Return the reason for which an answer ended; None if it goes on."""
    return None if name is None else REASONS.get(name, "error")


def read_delta(output: Any, index: int, top: int | None) -> Delta:  # noqa: ANN401 -- a type of vLLM
    """Return the delta of one ``RequestOutput`` for answer ``index``, with ``top`` best tokens at each position."""
    [answer] = output.outputs
    tokens = tuple(answer.token_ids)
    scores: tuple[TokenLogprob, ...] = ()
    if top is not None and answer.logprobs is not None:
        scores = tuple(read_scores(tokens, answer.logprobs, top))
    return Delta(
        index=index,
        tokens=tokens,
        logprobs=scores,
        ended=read_reason(answer.finish_reason),
        cached_tokens=output.num_cached_tokens or 0,
    )


def read_scores(tokens: Sequence[int], entries: Sequence[Mapping[int, Any]], top: int) -> Iterator[TokenLogprob]:
    """Yield the log-probability of each token, with the ``top`` best tokens at its position."""
    for token, entry in zip(tokens, entries, strict=True):
        ranked = sorted(entry.items(), key=lambda item: item[1].rank)
        best = tuple((other, each.logprob) for other, each in ranked[:top])
        yield TokenLogprob(token, entry[token].logprob, best)
