"""Converts requests and deltas to messages, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec

from parallax_core.api import (
    MOST_TEXT,
    Delta,
    Finish,
    InvalidRequest,
    Request,
    RequestId,
    TokenLogprob,
    make_printable,
)
from parallax_engines.messages import Scores, Submit, TokenDelta, TokenFinish

MOST_BYTES = 2**20
"""Bytes of deltas in a frame, roughly; a delta that alone has more is sent in parts."""
ENCODER = msgspec.msgpack.Encoder()
DECODER = msgspec.msgpack.Decoder(Submit)
DELTA_BYTES, TOKEN_BYTES, ENTRY_BYTES, TOP_BYTES = 64, 9, 24, 19
"""The most bytes of a delta's numbers, of a token, of a log-probability, and of an alternative to it."""


def make_submit(number: int, request: Request) -> Submit:
    """Return the message that submits ``request``, which is certain to be readable at the other end.

    Raises:
        InvalidRequest: if the request does not fit into a message.
    """
    submit = Submit(
        number=number,
        prompt=request.prompt,
        max_tokens=request.max_tokens or 1,
        sampling=request.sampling,
        stop_ids=tuple(sorted(request.stop_ids)),
        priority=request.priority,
        n=request.n,
        logprobs=-1 if request.logprobs is None else request.logprobs,
        prompt_logprobs=-1 if request.prompt_logprobs is None else request.prompt_logprobs,
        adapter=request.adapter,
        salt=request.salt,
        grammar=request.grammar,
    )
    try:  # a frame that cannot be read would end the link, and with it all other requests
        size = len(data := ENCODER.encode(submit))
        DECODER.decode(data)
    except (msgspec.ValidationError, UnicodeEncodeError, OverflowError, TypeError) as error:
        raise InvalidRequest(f"the request cannot be sent to the engine: {error}") from error
    if size >= Submit.most_bytes:  # a frame has a byte more
        raise InvalidRequest(f"the request cannot be sent to the engine: it has {size} bytes")
    return submit


def read_submit(submit: Submit) -> Request:
    """Return the request of a message; its id is the number that the head gave it."""
    return Request(
        id=RequestId(str(submit.number)),
        prompt=submit.prompt,
        max_tokens=submit.max_tokens,
        sampling=submit.sampling,
        stop_ids=frozenset(submit.stop_ids),
        priority=submit.priority,
        n=submit.n,
        logprobs=None if submit.logprobs < 0 else submit.logprobs,
        prompt_logprobs=None if submit.prompt_logprobs < 0 else submit.prompt_logprobs,
        adapter=submit.adapter,
        salt=submit.salt,
        grammar=submit.grammar,
    )


def pack_deltas(deltas: Iterable[tuple[int, Delta]]) -> Iterator[tuple[TokenDelta, ...]]:
    """Yield the deltas of numbered requests, in order, in portions that fit into a frame each."""
    portion: list[TokenDelta] = []
    size = 0
    for number, delta in deltas:
        for part in _split(delta):
            weight = _weigh(part)
            if portion and size + weight > MOST_BYTES:
                yield tuple(portion)
                portion, size = [], 0
            portion.append(_pack(number, part))
            size += weight
    if portion:
        yield tuple(portion)


def unpack_delta(delta: TokenDelta, num_prompt: int) -> Delta:
    """Return the delta of a message, for a request with ``num_prompt`` prompt tokens."""
    end = delta.finish
    finish = None
    if end is not None:
        # The output tokens are counted where the text is made: after a stop string, tokens are dropped.
        finish = Finish(
            reason=end.reason,
            prompt_tokens=num_prompt,
            output_tokens=0,
            message=end.message,
            cached_tokens=end.cached_tokens,
        )
    return Delta(
        tokens=delta.tokens,
        index=delta.index,
        logprobs=_unpack_scores(delta.logprobs),
        prompt_logprobs=_unpack_scores(delta.prompt_logprobs),
        ended=delta.ended,
        finish=finish,
        cached_tokens=delta.cached_tokens,
    )


def is_part(delta: TokenDelta) -> bool:
    """Return whether a delta only has log-probabilities of the prompt, which belong to the next one."""
    return not delta.tokens and delta.ended is None and delta.finish is None


def _pack(number: int, delta: Delta) -> TokenDelta:
    finish, end = delta.finish, None
    if finish is not None:
        end = TokenFinish(finish.reason, make_printable(finish.message, MOST_TEXT), finish.cached_tokens)
    return TokenDelta(
        number,
        delta.tokens,
        delta.index,
        delta.ended,
        end,
        delta.cached_tokens,
        _pack_scores(delta.logprobs),
        _pack_scores(delta.prompt_logprobs),
    )


def _split(delta: Delta) -> Iterator[Delta]:
    """Yield a delta in parts that fit into a frame each; the last one says how an answer or the request ended."""
    if _weigh(delta) <= MOST_BYTES:
        yield delta
        return
    for scores in _cut(delta.prompt_logprobs):
        yield Delta(index=delta.index, prompt_logprobs=tuple(scores), cached_tokens=delta.cached_tokens)
    start = 0
    for scores in _cut(delta.logprobs):
        stop = start + len(scores)
        yield Delta(index=delta.index, tokens=delta.tokens[start:stop], logprobs=tuple(scores))
        start = stop
    yield replace(delta, tokens=delta.tokens[start:], logprobs=(), prompt_logprobs=())


def _cut(scores: Sequence[TokenLogprob]) -> Iterator[list[TokenLogprob]]:
    portion: list[TokenLogprob] = []
    size = 0
    for score in scores:
        size += _weigh_score(score) + TOKEN_BYTES
        if portion and size > MOST_BYTES // 2:
            yield portion
            portion, size = [], _weigh_score(score) + TOKEN_BYTES
        portion.append(score)
    if portion:
        yield portion


def _weigh(delta: Delta) -> int:
    size = DELTA_BYTES + TOKEN_BYTES * len(delta.tokens)
    if delta.logprobs or delta.prompt_logprobs:
        size += sum(map(_weigh_score, (*delta.logprobs, *delta.prompt_logprobs)))
    if delta.finish is not None:
        size += 4 * len(delta.finish.message[:MOST_TEXT])
    return size


def _weigh_score(score: TokenLogprob) -> int:
    return ENTRY_BYTES + TOP_BYTES * len(score.top)


def _pack_scores(scores: Sequence[TokenLogprob]) -> Scores:
    return tuple([(each.token, each.logprob, each.top) for each in scores]) if scores else ()


def _unpack_scores(scores: Scores) -> tuple[TokenLogprob, ...]:
    return tuple([TokenLogprob(*each) for each in scores]) if scores else ()
