"""Converts requests to SGLang's, and SGLang's outputs to chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parallax_backend_sglang.frames import Chunk, Generate
from parallax_core.api import TokenLogprob

REASONS: Mapping[str, Any] = {"stop": "stop", "length": "length", "abort": "error"}


class AnswerTrimmer:
    """The chunks of one answer, cut after its first stop id.

    SGLang ends an answer at the end-of-sequence tokens of the model, or it ignores them together with all stop ids. If
    a request leaves out one of them, SGLang is told to ignore all, and the answer is cut here and aborted.
    """

    def __init__(self, asked: Generate, eos: frozenset[int]) -> None:
        """Cut the answer to ``asked``; ``eos`` are the tokens at which SGLang ends an answer by itself."""
        self._asked = asked
        self._stop_ids = frozenset(asked.stop_ids)
        self._is_first = True
        self.is_over = False
        """Whether the answer has ended here, and SGLang is to stop."""
        knows_stops = bool(self._stop_ids) and eos <= self._stop_ids
        ending = {"stop_token_ids": sorted(self._stop_ids)} if knows_stops else {"ignore_eos": True}
        self.sampling = {**asked.sampling, **ending}
        """The ``sampling_params`` of SGLang."""

    def cut(self, found: Mapping[str, Any]) -> Chunk | None:
        """Return the next chunk; None: the answer has ended already."""
        if self.is_over:
            return None
        meta = found["meta_info"]
        tokens, reason, message = list(found["output_ids"]), *_read_reason(meta.get("finish_reason"))
        if reason == "error":
            tokens = []  # those of the chunk before come again
        stops = [place for place, token in enumerate(tokens) if token in self._stop_ids]
        if stops:
            tokens, reason, message = tokens[: stops[0] + 1], "stop", ""
        self.is_over = reason is not None
        is_first, self._is_first = self._is_first, False
        options = self._asked.options
        return Chunk(
            number=self._asked.number,
            tokens=tuple(tokens),
            logprobs=_read_logprobs(meta, "output", len(tokens), options.get("logprobs")),
            prompt_logprobs=_read_prompt(meta, options) if is_first else (),
            cached_tokens=meta.get("cached_tokens", 0),
            ended=reason,
            message=message,
        )


def list_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `sglang.Engine.async_generate` for the options of a request.

    Args:
        options: ``priority``, ``salt``, and ``adapter`` with its ``folder``; and ``logprobs`` and ``prompt_logprobs``,
            the number of best tokens at each position, or None for no log-probabilities.
    """
    found = {"priority": options["priority"]}
    if options["salt"]:
        found["cache_salt"] = options["salt"]
    if options["adapter"]:
        found["lora_path"] = options["adapter"]
    tops = [top for name in ("logprobs", "prompt_logprobs") if (top := options[name]) is not None]
    if tops:
        found |= {"return_logprob": True, "top_logprobs_num": max(tops)}
        found["logprob_start_len"] = -1 if options["prompt_logprobs"] is None else 0
    return found


def _read_reason(finish: Mapping[str, Any] | None) -> tuple[Any, str]:
    """Return why an answer has ended, and a message if it is an error."""
    if finish is None:
        return None, ""
    reason = REASONS[finish["type"]]
    return reason, str(finish.get("message") or "SGLang aborted the request") if reason == "error" else ""


def _read_prompt(meta: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[TokenLogprob, ...]:
    found = meta.get("input_token_logprobs") or ()
    return _read_logprobs(meta, "input", len(found), options.get("prompt_logprobs"))[1:]


def _read_logprobs(meta: Mapping[str, Any], side: str, count: int, top: int | None) -> tuple[TokenLogprob, ...]:
    """Return log-probabilities of a chunk's first ``count`` tokens, with the ``top`` best; None if not requested.

    The first token of a prompt has none, for which SGLang has None, and this 0.
    """
    if top is None:
        return ()
    drawn: Sequence[Any] = meta[f"{side}_token_logprobs"][:count]
    best: Sequence[Any] = meta.get(f"{side}_top_logprobs") or [()] * count
    return tuple(
        TokenLogprob(token, logprob or 0.0, tuple((other, value) for value, other, _ in (tops or ())[:top]))
        for (logprob, token, _), tops in zip(drawn, best, strict=False)
    )
