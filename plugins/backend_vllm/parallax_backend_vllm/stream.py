"""Streams the deltas of one request: each answer is a request of its own in vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from parallax_backend_vllm.errors import describe_error
from parallax_backend_vllm.sampling import read_delta, read_scores
from parallax_core.api import Delta, Finish, Reason, Request, TokenLogprob

AnswerSource = AsyncGenerator[Any, None]
"""The ``RequestOutput``s of one answer."""


class VllmStream:
    """A `Stream`. It belongs to the event loop of its engine."""

    def __init__(self, request: Request, sources: Sequence[AnswerSource], on_end: Callable[[VllmStream], None]) -> None:
        """Stream the answers of ``sources``; ``on_end`` is called once, when the stream has ended."""
        self._request = request
        self._on_end = on_end
        self._deltas: asyncio.Queue[Delta | None] = asyncio.Queue()
        self._num_running = len(sources)
        self._num_tokens = 0
        self._num_cached = 0
        self._has_ended = False
        self._tasks = [asyncio.ensure_future(self._read(index, each)) for index, each in enumerate(sources)]

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Yield the deltas up to the one with a finish, or until the stream is closed."""
        while (delta := await self._deltas.get()) is not None:
            yield delta
            if delta.finish is not None:
                return

    def close(self) -> None:
        """Abort the request in vLLM and end the iteration; do nothing if it has ended."""
        if not self._has_ended:
            self._leave()
            self._deltas.put_nowait(None)

    def end(self, reason: Reason, message: str) -> None:
        """End the stream with a reason of the engine; do nothing if it has ended."""
        if not self._has_ended:
            self._deltas.put_nowait(Delta(finish=self._finish(reason, message)))
            self._leave()

    async def _read(self, index: int, source: AnswerSource) -> None:
        """Read the outputs of one answer. Cancelling it aborts the answer in vLLM."""
        try:
            async for output in source:
                delta = read_delta(output, index, self._request.logprobs)
                self._put(delta, output)
                if delta.ended is not None:
                    return
            self.end("error", "vLLM ended the answer without a reason")
        except Exception as error:  # noqa: BLE001 -- the client is told any error
            self.end("error", f"vLLM failed: {describe_error(error)}")

    def _put(self, delta: Delta, output: Any) -> None:  # noqa: ANN401 -- a type of vLLM
        if self._has_ended:
            return
        self._num_tokens += len(delta.tokens)
        self._num_cached = max(self._num_cached, delta.cached_tokens)
        finish = None
        if delta.ended is not None:
            self._num_running -= 1
            if delta.ended in {"aborted", "error"}:
                self.end(delta.ended, "vLLM gave the answer up")
                return
            finish = None if self._num_running else self._finish(delta.ended)
        prompt = self._read_prompt(output)
        if finish is not None or prompt:
            delta = replace(delta, prompt_logprobs=prompt, finish=finish)
        self._deltas.put_nowait(delta)
        if finish is not None:
            self._leave()

    def _read_prompt(self, output: Any) -> tuple[TokenLogprob, ...]:  # noqa: ANN401 -- a type of vLLM
        """Return the log-probabilities of the prompt after its first token, which vLLM gives with the first output."""
        top = self._request.prompt_logprobs
        if top is None or not output.prompt_logprobs:
            return ()
        return tuple(read_scores(self._request.prompt[1:], output.prompt_logprobs[1:], top))

    def _finish(self, reason: Reason, message: str = "") -> Finish:
        return Finish(
            reason=reason,
            prompt_tokens=len(self._request.prompt),
            output_tokens=self._num_tokens,
            message=message,
            cached_tokens=self._num_cached,
        )

    def _leave(self) -> None:
        self._has_ended = True
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._on_end(self)
