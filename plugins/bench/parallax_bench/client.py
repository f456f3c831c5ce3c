"""Sends requests, and measures their answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import aiohttp

from parallax_bench.request import BenchRequest, BenchResult
from parallax_core.api import ParallaxError


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The server."""

    url: str
    """The address of the server, without ``/v1``."""
    model: str
    api_key: str = ""
    ignores_eos: bool = True
    """Whether to send ``ignore_eos``, for answers of full length; not every server knows the field."""
    temperature: float = 0.0
    timeout_s: float = 600.0

    def make_body(self, request: BenchRequest) -> dict[str, Any]:
        """Return the body of a request."""
        extra = {"ignore_eos": True} if self.ignores_eos else {}
        common = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        return {"temperature": self.temperature, **extra, **request.body, **common}


async def send_requests(
    target: Target,
    requests: Sequence[BenchRequest],
    gaps: Iterable[float],
    concurrency: int,
    on_end: Callable[[BenchResult], None],
) -> list[BenchResult]:
    """Send ``requests``, each after its gap, and return their results; ``concurrency`` 0 means no limit."""
    room = asyncio.Semaphore(concurrency) if concurrency else nullcontext()
    began = time.perf_counter()
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    timeout = aiohttp.ClientTimeout(total=target.timeout_s)

    async def run_one(request: BenchRequest) -> BenchResult:
        async with room:
            result = await _ask(session, target, request, began)
        on_end(result)
        return result

    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
        running, due = [], began
        for request, gap in zip(requests, gaps, strict=True):
            due += gap
            if (wait_s := due - time.perf_counter()) > 0:  # a late request does not delay the next
                await asyncio.sleep(wait_s)
            running.append(asyncio.create_task(run_one(request)))
        return list(await asyncio.gather(*running))


async def _ask(session: aiohttp.ClientSession, target: Target, request: BenchRequest, began: float) -> BenchResult:
    result, is_over = BenchResult(sent=time.perf_counter() - began), False
    try:
        async with session.post(target.url + request.route, json=target.make_body(request)) as response:
            if response.status != 200:  # noqa: PLR2004 -- the status of an answer
                result.error = f"{response.status}: {(await response.text())[:200]}"
                return result
            async for line in response.content:
                is_over = _read_line(line, result, time.perf_counter() - began) or is_over
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        result.error = f"{type(error).__name__}: {error}"
    if not result.error and not is_over:
        result.error = "the answer ended early"
    return result


def _read_line(line: bytes, result: BenchResult, now: float) -> bool:
    """Read a line of an event stream; return whether it ends the answer."""
    if not line.startswith(b"data:"):  # a comment, or another field of an event
        return False
    data = line.removeprefix(b"data:").strip()
    if data == b"[DONE]":
        result.last = result.last or now
        return True
    chunk = json.loads(data)
    if "error" in chunk:
        result.error = str(chunk["error"].get("message", chunk["error"]))
    if usage := chunk.get("usage"):
        result.prompt_tokens, result.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        result.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    if any(_read_text(choice) for choice in chunk.get("choices", ())):
        if result.first is None:
            result.first = now
        else:
            result.gaps.append(now - (result.last or now))
        result.last = now
    return False


def _read_text(choice: dict[str, Any]) -> str:
    return str(choice.get("text") or (choice.get("delta") or {}).get("content") or "")


def _read_refusal(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return "it requires another API key"


async def find_model(target: Target) -> str:
    """Return the first model of a server.

    Raises:
        ParallaxError: if the server does not answer, or requires another key.
    """
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    try:
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"{target.url}/v1/models") as response,
        ):
            if response.status in {401, 403}:
                message = f"the server at {target.url} refuses: {_read_refusal(await response.read())}"
                raise ParallaxError(message, "set PARALLAX_API_KEY to a key for inference on that server")
            response.raise_for_status()
            return str((await response.json())["data"][0]["id"])
    except (aiohttp.ClientError, OSError, LookupError, ValueError) as error:
        message = f"no server answers at {target.url}: {error}"
        raise ParallaxError(message, "start one with `parallax serve`, or give --url") from error
