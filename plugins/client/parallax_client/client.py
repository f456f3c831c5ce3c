"""A client of a running server's API, for commands."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from typing import Any

from parallax_client.http_opener import complete_url, open_request
from parallax_core.api import ParallaxError
from parallax_core.api.cli import DEFAULT_URL


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A whole response of a server."""

    status: int
    request_id: str | None
    """The id that the server gave the request; None: none."""
    body: Any
    """Its JSON, or its text if it is not JSON."""
    retry_after_s: float = 1.0
    """Seconds after which the server wants to be asked again."""


class Client:
    """Calls the API of a server."""

    def __init__(self, url: str, timeout_s: float | None = None, key: str | None = None) -> None:
        """Call the server at ``url``, and wait for ``timeout_s`` seconds for each piece of an answer.

        The API key is ``key``, or else that of PARALLAX_API_KEY.
        """
        self._url = complete_url(url).rstrip("/")
        self._timeout_s = timeout_s
        self._key = key or os.environ.get("PARALLAX_API_KEY")

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
        return self.read("/cluster", "cluster")

    def history(self, since_s: float) -> list[dict[str, Any]]:
        """Return the events of the last seconds, of ``GET /v1/cluster/history``.

        Raises:
            ParallaxError: if no server answers there, or it is not a Parallax server.
        """
        found: list[dict[str, Any]] = self.read(f"/cluster/history?since={since_s:g}", "list")["data"]
        return found

    def read(self, path: str, kind: str) -> dict[str, Any]:
        """Return the answer of a path below ``/v1`` that only Parallax servers have; ``kind`` is its ``object``.

        Raises:
            ParallaxError: if no server answers there, it refuses, or it is not a Parallax server.
        """
        try:
            found = self._fetch(path, "admin")
        except ParallaxError as error:
            cause = error.__cause__
            if isinstance(cause, urllib.error.HTTPError) and cause.code == HTTPStatus.NOT_FOUND:
                raise self._wrong_server("a Parallax") from error
            raise
        except ValueError as error:
            raise self._wrong_server("a Parallax") from error
        if isinstance(found, dict) and found.get("object") == kind:
            return found
        raise self._wrong_server("a Parallax")

    def known_models(self) -> dict[str, Any]:
        """Return the answer of ``GET /v1/cluster/models``.

        Raises:
            ParallaxError: if no server answers there, it refuses, or it is not a Parallax server.
        """
        return self.read("/cluster/models", "cluster.models")

    def change_models(self, body: dict[str, Any]) -> str:
        """Ask the server to change its models; return the id of the change.

        Raises:
            ParallaxError: if no server answers there, it refuses, or it is not a Parallax server.
        """
        try:
            with self._open("/cluster/models", body, "admin") as response:
                return str(json.load(response)["id"])
        except (ValueError, LookupError, TypeError) as error:
            raise self._wrong_server("a Parallax") from error
        except (OSError, HTTPException) as error:
            raise self._absent(error) from error

    def change_cluster(self, path: str) -> None:
        """Post to a route below ``/v1`` that changes the cluster, such as ``/cluster/rebalance``.

        Raises:
            ParallaxError: if no server answers there, or it refuses.
        """
        try:
            self._open(path, {}, "admin").close()
        except (OSError, HTTPException) as error:
            raise self._absent(error) from error

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the choices of a streamed answer, such as that of ``/chat/completions``, as they come.

        Raises:
            ParallaxError: if the server refuses the request, or ends the stream early.
        """
        with self._open(path, {**body, "stream": True}) as response:
            for data in _read_events(response):
                if data == b"[DONE]":
                    return
                event = json.loads(data)
                if "error" in event:
                    raise ParallaxError(event["error"]["message"])
                yield from event["choices"]
        message = "the server ended the connection in the middle of its answer"
        raise ParallaxError(message, "its log may say why")

    def send(self, path: str, body: dict[str, Any]) -> HttpReply:
        """Return the server's reply to a POST request, whatever its status.

        Raises:
            ParallaxError: if no server answers there, or the connection fails.
        """
        try:
            with open_request(self._make_request(path, body), self._timeout_s) as response:
                return _read_reply(response.status, response)
        except urllib.error.HTTPError as error:
            with error:
                return _read_reply(error.code, error)
        except (OSError, ValueError, HTTPException) as error:
            raise self._absent(error) from error

    def _fetch(self, path: str, role: str = "user") -> Any:  # noqa: ANN401 -- any JSON
        with self._open(path, role=role) as response:
            try:
                return json.load(response)
            except (OSError, HTTPException) as error:
                raise self._absent(error) from error

    def _open(self, path: str, body: dict[str, Any] | None = None, role: str = "user") -> Any:  # noqa: ANN401 -- what urlopen returns
        try:
            return open_request(self._make_request(path, body), self._timeout_s)
        except urllib.error.HTTPError as error:
            raise _refusal(error, role) from error
        except (OSError, ValueError, HTTPException) as error:
            raise self._absent(error) from error

    def _make_request(self, path: str, body: dict[str, Any] | None) -> urllib.request.Request:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = json.dumps(body).encode() if body is not None else None
        return urllib.request.Request(self._url + path, data, headers)  # noqa: S310 -- the user's own address

    def _absent(self, error: Exception) -> ParallaxError:
        message = f"no server answers at {self._url}: {getattr(error, 'reason', error)}"
        return ParallaxError(message, "start one with `parallax serve`, or give its address with --url")

    def _wrong_server(self, kind: str) -> ParallaxError:
        message = f"the server at {self._url} is not {kind} server"
        example = DEFAULT_URL if self._url.endswith("/v1") else f"{self._url}/v1"
        return ParallaxError(message, f"give its address with --url, such as {example}")


def _read_events(response: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the data of each event of a stream, until it ends or breaks."""
    with suppress(OSError, HTTPException):
        for line in response:
            if line.startswith(b"data: ") and line.endswith(b"\n"):
                yield line.removeprefix(b"data: ").strip()


def _read_reply(status: int, response: Any) -> HttpReply:  # noqa: ANN401 -- of two kinds
    """Return a response with its whole body."""
    content = response.read()
    try:
        body = json.loads(content)
    except ValueError:
        body = content.decode(errors="replace")
    try:
        retry_after_s = float(response.headers.get("Retry-After", "1"))
    except ValueError:  # a date
        retry_after_s = 1.0
    return HttpReply(status, response.headers.get("X-Request-Id"), body, retry_after_s)


def _refusal(error: urllib.error.HTTPError, role: str) -> ParallaxError:
    """Return the error of a server's response; ``role`` is the role that an API key needs for the request."""
    code, hint = None, ""
    try:
        found = json.load(error)["error"]
        message, code = found["message"], found.get("code")
        if hint := str(found.get("hint") or ""):
            message = message.removesuffix(f"; {hint}")
    except (ValueError, LookupError, TypeError, AttributeError):
        message = f"the server answered {error.code} {error.reason}"
    if error.code == HTTPStatus.UNAUTHORIZED or code == "insufficient_permissions":
        return ParallaxError(message, f"set PARALLAX_API_KEY to a key that has the role '{role}' on that server")
    return ParallaxError(message, hint)
