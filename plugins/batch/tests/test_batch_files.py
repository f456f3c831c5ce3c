from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parallax_batch.files import BatchRequest, InvalidLine, ResultFile, count_requests, read_requests
from parallax_core.base.errors import UsageError

REQUEST: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"custom_id": ""}, "'custom_id' must be a text"),
        ({"custom_id": 3}, "'custom_id' must be a text"),
        ({"method": "GET"}, "'method' must be 'POST'"),
        ({"method": None}, "'method' must be 'POST'"),
        ({"url": "/v1/models"}, "'url' must be one of /v1/chat/completions"),
        ({"url": ["/v1/completions"]}, "'url' must be one of"),
        ({"url": "http://other/v1/completions"}, "'url' must be one of"),
        ({"body": "x"}, "'body' must be an object"),
        ({"body": {"stream": True}}, "'body.stream' must be false"),
        ({"priority": 1}, "unknown field 'priority'"),
    ],
)
def test_line_that_is_not_a_request_says_why(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    file = tmp_path / "in"
    file.write_text("\n\n" + json.dumps({**REQUEST, **changes}))
    [found] = read_requests(file)
    assert isinstance(found, InvalidLine)
    assert found.message.startswith("line 3: ")
    assert words in found.message
    assert found.custom_id == (None if "custom_id" in changes else "a")


def test_byte_order_mark_and_line_ends_of_windows_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "in"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(REQUEST).encode() + b"\r\n\r\n")
    assert list(read_requests(file)) == [BatchRequest("a", "/v1/completions", {"prompt": "x"})]
    assert count_requests(file) == 1


@given(st.lists(st.binary(max_size=40) | st.just(json.dumps(REQUEST).encode()) | st.just(b"[" * 5000), max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_line_is_a_request_or_an_error(tmp_path: Path, lines: list[bytes]) -> None:
    file = tmp_path / "in"
    file.write_bytes(b"\n".join(lines))
    found = list(read_requests(file))
    assert len(found) == count_requests(file)
    assert sum(isinstance(each, BatchRequest) for each in found) <= 1


def test_results_are_kept_for_the_next_run(tmp_path: Path) -> None:
    with ResultFile(tmp_path / "out", is_kept=True) as results:
        results.add("a", {"body": "\ud800"})
        with pytest.raises(UsageError, match="another process writes"):
            ResultFile(tmp_path / "out", is_kept=True)
        results.add(None, None, {"code": "c", "message": "m"})
    with (tmp_path / "out").open("ab") as cut:
        cut.write(b'{"id": "batc')
    with ResultFile(tmp_path / "out", is_kept=True) as results:
        assert "a" in results.done
        results.add("b", {})
    assert [json.loads(line)["custom_id"] for line in (tmp_path / "out").read_text().splitlines()] == ["a", None, "b"]
    with ResultFile(tmp_path / "out", is_kept=False):
        assert (tmp_path / "out").stat().st_size == 0


@pytest.mark.parametrize("content", ["hello", "hello\n", '{"a": 1}\n', '{"a": 1}', "[]\n", "\n"])
def test_other_file_is_not_overwritten(tmp_path: Path, content: str) -> None:
    (tmp_path / "out").write_text(content)
    for is_kept in (True, False):
        with pytest.raises(UsageError, match="has no results of a batch"):
            ResultFile(tmp_path / "out", is_kept=is_kept)
    assert (tmp_path / "out").read_text() == content
