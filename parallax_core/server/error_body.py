"""Makes error bodies in OpenAI's form, and responses for connections that reach no application."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from parallax_core.server.response_models import ErrorDetail, ErrorReply

MAX_MESSAGE = 1000
"""The largest number of characters of an error's message."""

KINDS = {
    400: "invalid_request_error",
    413: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
"""OpenAI's error type for each status."""
UNFORESEEN = "server_error"
"""The error type for every other status."""
TYPES = tuple(dict.fromkeys((*KINDS.values(), UNFORESEEN)))
"""All error types."""


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None, hint: str = ""
) -> dict[str, Any]:
    """Return an error body in OpenAI's form.

    ``hint``, a remedy for the user of a command, is a field of its own, and at the end of the message for others.
    """
    message = f"{message}; {hint}" if hint else message
    message = message.encode(errors="replace").decode()[:MAX_MESSAGE]  # it may quote the client
    param = param and param.encode(errors="replace").decode()[:MAX_MESSAGE]
    detail = ErrorDetail(message, KINDS.get(status, UNFORESEEN), param, code, hint or msgspec.UNSET)
    body: dict[str, Any] = msgspec.to_builtins(ErrorReply(detail))
    return body


def write_unavailable(message: str, code: str, retry_after_s: int) -> bytes:
    """Return a whole HTTP/1.1 response with the status 503, which ends its connection."""
    body = json.dumps(error_body(503, message, code=code)).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: {retry_after_s}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
