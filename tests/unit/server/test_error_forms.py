"""Errors have the form of the API that a path or a header belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from parallax_core.contracts.dialect import ErrorForm
from parallax_core.server.error_forms import ErrorForms


def write_fault(status: int, error: Mapping[str, Any], request_id: str) -> tuple[int, dict[str, Any]]:
    return status + 1, {"fault": error["message"], "id": request_id}


FORM = ErrorForm(paths=("/v1/mine", "/other"), write=write_fault, header="x-mine")


@pytest.mark.parametrize("path", ["/v1", "/v1/chat", "/v1/mine", "/v1/mine/x", "/other", "/api", "/api/x"])
def test_form_of_errors_is_set_once_for_a_path(path: str) -> None:
    forms = ErrorForms([FORM])
    forms.add("/api", lambda status, message: {"error": f"{status} {message}"})
    with pytest.raises(ValueError, match="have a form already"):
        forms.add(path, lambda status, message: {"error": f"{status} {message}"})
    form = forms.find("/api/x")
    assert form is not None
    assert form.write(404, {"message": "no"}, "abc") == (404, {"error": "404 no"})


@pytest.mark.parametrize(
    ("path", "headers", "is_found"),
    [
        ("/v1/mine", [], True),
        ("/v1/mine/x", [], True),
        ("/other", [], True),
        ("/v1/minex", [], False),
        ("/v1/models", [], False),
        ("/v1/models", [(b"x-mine", b"")], True),
        ("/v1/models/toy", [(b"x-mine", b"1")], True),
        ("/v1/chat/completions", [(b"x-mine", b"1")], False),
    ],
)
def test_header_counts_where_apis_share_a_path(path: str, headers: list[Any], *, is_found: bool) -> None:
    scope = {"type": "http", "path": path, "headers": headers}
    assert ErrorForms([FORM]).find_for(scope) is (FORM if is_found else None)


def test_copy_takes_no_more_from_its_original() -> None:
    forms = ErrorForms([FORM])
    copied = forms.copy()
    copied.add("/api", lambda status, message: {"error": message})
    assert forms.find("/api") is None
    assert copied.find("/other") is FORM
    assert copied.headers == {"x-mine"}
    assert forms.all == [FORM]
