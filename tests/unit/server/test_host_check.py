"""Names that a request may ask for."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.server.host_check import read_host
from parallax_core.server.options import LOOPBACK_NAMES, ServerOptions
from tests.unit.server.letters import Site, error_of

LOCAL = ServerOptions(hosts=LOOPBACK_NAMES)


@pytest.mark.parametrize(
    "host", ["localhost:8000", "127.0.0.1", "127.0.0.1:8000", "[::1]:8000", "[::1]", "LocalHost.:1"]
)
def test_server_answers_to_its_own_names(host: str) -> None:
    with Site(LOCAL) as site:
        assert site.client.get("/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example#127.0.0.1",
        "",
        ":8000",
        "[::1",
        "1",
    ],
)
def test_name_of_another_site_is_refused(host: str) -> None:
    with Site(LOCAL) as site:
        error = error_of(site.client.get("/v1/models", headers={"Host": host}), 403)
        assert error["code"] == "host_not_allowed"
        assert "allowed_host" in error["message"]


def test_page_whose_name_leads_here_can_neither_read_nor_send() -> None:
    rebound = {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"}
    with Site(LOCAL) as site:
        for path in ("/v1/models", "/v1/cluster", "/metrics", "/openapi.json", "/nowhere"):
            error_of(site.client.get(path, headers=rebound), 403)
        for path in ("/v1/chat/completions", "/v1/replicas/0/drain", "/tokenize"):
            error_of(site.client.post(path, headers=rebound), 403)
        assert site.client.get("/health").json()["status"] == "ready"


def test_supervisor_may_call_the_server_what_it_likes() -> None:
    with Site(LOCAL) as site:
        for path in ("/health", "/ready", "/version"):
            assert site.client.get(path, headers={"Host": "pod-7.cluster"}).status_code == 200


def test_name_that_is_allowed_is_answered() -> None:
    with Site(ServerOptions(hosts=("LLM.example",))) as site:
        assert site.client.get("/v1/models", headers={"Host": "llm.example:443"}).status_code == 200
        error_of(site.client.get("/v1/models", headers={"Host": "localhost"}), 403)
    with Site(ServerOptions(hosts=("*",))) as site:
        assert site.client.get("/v1/models", headers={"Host": "anything"}).status_code == 200


@given(st.text(st.characters(max_codepoint=255), max_size=30))
def test_any_header_is_read_and_only_exact_names_are_ours(header: str) -> None:
    if read_host(header) in LOOPBACK_NAMES:
        assert re.fullmatch(r"\s*(localhost|127\.0\.0\.1|\[::1\])\.?(:[0-9]*)?\s*", header, re.IGNORECASE)


@given(st.sampled_from(["localhost", "127.0.0.1", "[::1]"]), st.sampled_from(["", ":", ":80", ":65535"]))
def test_own_name_is_known_with_any_port(name: str, port: str) -> None:
    assert read_host(name + port) == name.strip("[]")
