"""Sends requests to a server within the process, without an HTTP client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from parallax_core.base.taskgroup import wait_for_ever


@dataclass(frozen=True, slots=True)
class AsgiAnswer:
    """The answer to a request."""

    status: int
    kind: str
    """Its content type."""
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """By their names in lower case; of those sent twice, the last."""


def make_scope(method: str, path: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the head of a request, with further headers; a path may have a query."""
    given = {"host": "toy", "content-type": "application/json", **(headers or {})}
    before, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(before),
        "raw_path": before.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("toy", 80),
    }


async def send_request(
    app: Any,  # noqa: ANN401 -- as ASGI has it
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> AsgiAnswer:
    """Send a request with a body in JSON, and return the whole answer."""
    sent = [{"type": "http.request", "body": body, "more_body": False}]
    got: list[Any] = []

    async def receive() -> dict[str, Any]:
        if not sent:
            await wait_for_ever()  # the client stays until it has the answer
        return sent.pop()

    async def send(message: Any) -> None:  # noqa: ANN401 -- as ASGI has it
        got.append(message)

    await app(make_scope(method, path, headers), receive, send)
    found = {name.decode().lower(): value.decode("latin-1") for name, value in got[0]["headers"]}
    body = b"".join(each.get("body", b"") for each in got)
    return AsgiAnswer(got[0]["status"], found.get("content-type", ""), body, found)
