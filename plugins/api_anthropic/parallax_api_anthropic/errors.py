"""Writes errors in the form of Anthropic's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from parallax_api_anthropic.replies import MessageErrorDetail, MessageErrorReply
from parallax_core.api import ErrorForm
from parallax_core.api.bodies import JsonObject

PATH = "/v1/messages"
"""The path of the Messages routes, with all paths below it."""
VERSION_HEADER = "anthropic-version"
"""The header with the API version that Anthropic's clients want."""

OVERLOADED = 529
"""The status of ``overloaded_error``, which stands for 503."""
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    OVERLOADED: "overloaded_error",
}
"""Anthropic's error type for each status; the others are ``invalid_request_error`` below 500, else ``api_error``."""
UNAVAILABLE, SERVER_ERROR = 503, 500


def convert_error(status: int, error: Mapping[str, Any], request_id: str) -> tuple[int, JsonObject]:
    """Return the status and the body for an error in OpenAI's form; the message names the field."""
    status = OVERLOADED if status == UNAVAILABLE else status
    kind = KINDS.get(status, "api_error" if status >= SERVER_ERROR else "invalid_request_error")
    message, param = str(error["message"]), error.get("param")
    if param and f"'{param}" not in message and not message.startswith(param):
        message = f"{param}: {message}"
    return status, msgspec.to_builtins(MessageErrorReply(MessageErrorDetail(kind, message), request_id))


def convert_response(response: Any, request_id: str) -> JsonObject:  # noqa: ANN401 -- a module with routes decodes nothing
    """Return the body for a response with an error in OpenAI's form."""
    error = msgspec.json.decode(bytes(response.body))["error"]
    return convert_error(response.status_code, error, request_id)[1]


FORM = ErrorForm(paths=(PATH,), write=convert_error, schema=MessageErrorReply, header=VERSION_HEADER)
