"""A client of a running server's API, for commands."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from typing import Any

from parallax_core.base.errors import ParallaxError

DEFAULT_URL = "http://127.0.0.1:8000/v1"


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """A piece of an answer in a chat."""

    text: str
    is_reasoning: bool = False


class Client:
    """Calls the API of a server. It takes the API key from PARALLAX_API_KEY."""

    def __init__(self, url: str, timeout_s: float | None = None) -> None:
        """Call the server at ``url``, and wait for ``timeout_s`` seconds for each piece of an answer."""
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s

    def model(self) -> str:
        """Return the id of the server's first model.

        Raises:
            ParallaxError: if no server answers there, or its answer is not a list of models.
        """
        try:
            return str(self._fetch("/models")["data"][0]["id"])
        except (ValueError, LookupError, TypeError) as error:
            raise self._wrong_server("an OpenAI-compatible") from error

    def cluster(self) -> dict[str, Any]:
        """Return the answer of ``GET /v1/cluster``.

        Raises:
            ParallaxError: if no server answers there, or it is not a Parallax server.
        """
        try:
            found = self._fetch("/cluster", "admin")
        except ParallaxError as error:
            cause = error.__cause__
            if isinstance(cause, urllib.error.HTTPError) and cause.code == HTTPStatus.NOT_FOUND:
                raise self._wrong_server("a Parallax") from error
            raise
        except ValueError as error:
            raise self._wrong_server("a Parallax") from error
        if isinstance(found, dict) and found.get("object") == "cluster":
            return found
        raise self._wrong_server("a Parallax")

    def chat(self, body: dict[str, Any]) -> Iterator[AnswerPiece]:
        """Yield the pieces of a streamed answer in a chat; raises what `complete` raises."""
        for choice in self._stream("/chat/completions", body):
            delta = choice["delta"]
            if reasoning := delta.get("reasoning"):
                yield AnswerPiece(reasoning, is_reasoning=True)
            if content := delta.get("content"):
                yield AnswerPiece(content)

    def complete(self, body: dict[str, Any]) -> Iterator[str]:
        """Yield the text of a streamed completion, piece by piece.

        Raises:
            ParallaxError: if the server refuses the request, or ends the stream early.
        """
        for choice in self._stream("/completions", body):
            yield choice["text"]

    def _stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        with self._open(path, {**body, "stream": True}) as response:
            for line in response:
                if not line.startswith(b"data: "):
                    continue
                data = line.removeprefix(b"data: ").strip()
                if data == b"[DONE]":
                    return
                event = json.loads(data)
                if "error" in event:
                    raise ParallaxError(event["error"]["message"])
                yield from event["choices"]
        message = "the server ended the connection in the middle of its answer"
        raise ParallaxError(message, "its log may say why")

    def _fetch(self, path: str, role: str = "user") -> Any:  # noqa: ANN401 -- any JSON
        with self._open(path, role=role) as response:
            try:
                return json.load(response)
            except (OSError, HTTPException) as error:
                raise self._absent(error) from error

    def _open(self, path: str, body: dict[str, Any] | None = None, role: str = "user") -> Any:  # noqa: ANN401 -- what urlopen returns
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("PARALLAX_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        data = json.dumps(body).encode() if body is not None else None
        try:
            request = urllib.request.Request(self._url + path, data, headers)  # noqa: S310 -- the user's own address
            return urllib.request.urlopen(request, timeout=self._timeout_s)  # noqa: S310
        except urllib.error.HTTPError as error:
            raise _refusal(error, role) from error
        except (OSError, ValueError, HTTPException) as error:
            raise self._absent(error) from error

    def _absent(self, error: Exception) -> ParallaxError:
        message = f"no server answers at {self._url}: {getattr(error, 'reason', error)}"
        return ParallaxError(message, "start one with `parallax serve`, or give its address with --url")

    def _wrong_server(self, kind: str) -> ParallaxError:
        message = f"the server at {self._url} is not {kind} server"
        return ParallaxError(message, f"give its address with --url, such as {DEFAULT_URL}")


def _refusal(error: urllib.error.HTTPError, role: str) -> ParallaxError:
    """Return the error of a server's response; ``role`` is the role that an API key needs for the request."""
    code = None
    try:
        found = json.load(error)["error"]
        message, code = found["message"], found.get("code")
    except (ValueError, LookupError, TypeError, AttributeError):
        message = f"the server answered {error.code} {error.reason}"
    if error.code == HTTPStatus.UNAUTHORIZED or code == "insufficient_permissions":
        return ParallaxError(message, f"set PARALLAX_API_KEY to a key that has the role '{role}' on that server")
    return ParallaxError(message)
