"""Compressed bodies."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from parallax_core.server.options import ServerOptions
from tests.unit.server.letters import Site, answer, error_of

BODY = json.dumps({"model": "toy", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}).encode()


def deflate_raw(data: bytes) -> bytes:
    coder = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return coder.compress(data) + coder.flush()


def send(site: Site, coding: str, body: bytes, path: str = "/v1/chat/completions") -> Any:
    return site.client.post(
        path, content=body, headers={"Content-Type": "application/json", "Content-Encoding": coding}
    )


@pytest.mark.parametrize(
    ("coding", "encode"),
    [
        ("gzip", gzip.compress),
        ("GZip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", deflate_raw),
        ("identity, gzip", gzip.compress),
        ("identity", bytes),
        ("", bytes),
        ("gzip", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
        ("gzip", lambda data: gzip.compress(data + b" " * 500_000)),
    ],
)
def test_compressed_body_is_answered_like_a_plain_one(
    site: Site, coding: str, encode: Callable[[bytes], bytes]
) -> None:
    response = send(site, coding, encode(BODY))
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["content"] == answer("hello", 4)


@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "gzip, gzip", "*"])
def test_other_coding_is_a_415_that_names_it_and_those_that_are_supported(site: Site, coding: str) -> None:
    response = send(site, coding, b"x")
    assert repr(coding) in error_of(response, 415)["message"]
    assert response.headers["Accept-Encoding"] == "gzip, deflate"
    assert send(site, coding, b"x", "/v1/messages").json()["type"] == "error"


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize(
    "body", [b"{}", gzip.compress(BODY, mtime=0)[:-3], zlib.compress(BODY)[:-3], gzip.compress(BODY, mtime=0) + b"x"]
)
def test_body_that_is_not_what_its_coding_says_is_refused(site: Site, coding: str, body: bytes) -> None:
    assert coding in error_of(send(site, coding, body))["message"]


def test_compressed_body_is_decoded_up_to_the_limit_and_no_further() -> None:
    with Site(ServerOptions(max_body_bytes=200_000)) as site:
        assert send(site, "gzip", gzip.compress(BODY.ljust(200_000))).status_code == 200
        error = error_of(send(site, "gzip", gzip.compress(BODY.ljust(200_001))), 413)
        assert "max_body" in error["message"]
        error_of(send(site, "deflate", zlib.compress(b" " * 10**8)), 413)


def test_empty_compressed_body_is_an_empty_body(site: Site) -> None:
    assert "not valid JSON" in error_of(send(site, "gzip", b""))["message"]
