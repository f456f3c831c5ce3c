"""Sends requests to a server within the process, without an HTTP client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parallax_core.base.taskgroup import wait_for_ever


@dataclass(frozen=True, slots=True)
class AsgiAnswer:
    """The answer to a request."""

    status: int
    kind: str
    """Its content type."""
    body: bytes


async def send_request(app: Any, method: str, path: str, body: bytes = b"") -> AsgiAnswer:  # noqa: ANN401 -- as ASGI has it
    """Send a request with a body in JSON, and return the whole answer."""
    sent = [{"type": "http.request", "body": body, "more_body": False}]
    got: list[Any] = []

    async def receive() -> dict[str, Any]:
        if not sent:
            await wait_for_ever()  # the client stays until it has the answer
        return sent.pop()

    async def send(message: Any) -> None:  # noqa: ANN401 -- as ASGI has it
        got.append(message)

    await app(
        {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"toy"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("toy", 80),
        },
        receive,
        send,
    )
    kind = dict(got[0]["headers"]).get(b"content-type", b"").decode()
    return AsgiAnswer(got[0]["status"], kind, b"".join(each.get("body", b"") for each in got))
