"""The page for those who open the server's address in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
from fastapi import APIRouter

from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from parallax_web.front_page import PAGE, write_policy
from plugins.web.tests.web_site import extend
from tests.unit.server.letters import Site, error_of

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


@pytest.fixture
def paged(site: Site) -> Site:
    extend(site)
    return site


class Page(HTMLParser):
    """Collects the tags, the links and the attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in {"href", "src"}]


@pytest.mark.parametrize("path", ["/", "//", "/v1", "/v1/"])
@pytest.mark.parametrize("headers", [{}, BROWSER])
def test_page_is_at_the_address_that_the_server_prints(paged: Site, path: str, headers: dict[str, str]) -> None:
    found = paged.client.get(f"http://testserver{path}", headers=headers)
    assert (found.status_code, found.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "Parallax is running" in found.text
    asked = paged.client.head(f"http://testserver{path}", headers=headers)
    assert (asked.status_code, asked.content) == (200, b"")


def test_page_has_no_script_and_its_policy_allows_its_style_alone(paged: Site) -> None:
    found = paged.client.get("/")
    policy = dict(part.split(" ", 1) for part in found.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert found.headers["Content-Security-Policy"] == write_policy(found.text)
    assert re.fullmatch(r"'sha256-[A-Za-z0-9+/]{43}='", policy["style-src"])
    page = Page(found.text)
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "form"})
    assert not [name for name in page.names if name == "style" or name.startswith("on")]


def test_every_link_of_the_page_leads_to_a_route_of_this_server(paged: Site) -> None:
    links = Page(paged.client.get("/").text).links
    assert {"/v1/models", "/ready", "/openapi.json"} <= set(links)
    assert {link: paged.client.get(link).status_code for link in links} == dict.fromkeys(links, 200)


def test_page_needs_no_key_and_shows_nothing_of_what_keys_protect() -> None:
    with Site(ServerOptions(keys=ApiKeys({"secret": "user"}))) as site:
        extend(site)
        found = site.client.get("/")
        assert found.status_code == 200
        assert found.text == PAGE.read_text(encoding="utf-8").replace("127.0.0.1:8000", "testserver")
        error_of(site.client.get("/v1/models"), 401)


def test_curl_line_has_the_address_that_was_asked_for(paged: Site) -> None:
    found = paged.client.get("/", headers={"Host": "127.0.0.1:8123"}).text
    assert "curl http://127.0.0.1:8123/v1/chat/completions \\" in found
    assert ":8000" not in found


@pytest.mark.parametrize("host", ["a<b>", "a;date", "a b", "$(date)", "a'b", ""])
def test_host_with_other_characters_is_not_shown(paged: Site, host: str) -> None:
    found = paged.client.get("/", headers={"Host": host})
    assert found.text == PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("headers", "address"),
    [
        ({"X-Forwarded-Proto": "https"}, "https://testserver"),
        ({"X-Forwarded-Proto": "HTTPS, http", "X-Forwarded-Host": "llm.example.org, proxy"}, "https://llm.example.org"),
        ({"X-Forwarded-Host": "llm.example.org:8443"}, "http://llm.example.org:8443"),
        ({"Forwarded": 'for="[::1]:5,6";Proto=https;host="[fe80::1]:8443", proto=http'}, "https://[fe80::1]:8443"),
        ({"Forwarded": "for=1.2.3.4; host=llm.example.org"}, "http://llm.example.org"),
        ({"Forwarded": "proto=https", "X-Forwarded-Proto": "http", "X-Forwarded-Host": "a.b"}, "https://a.b"),
        ({"X-Forwarded-Proto": "javascript", "X-Forwarded-Host": "a<b>"}, "http://testserver"),
        ({"Forwarded": 'proto="https;host="a', "X-Forwarded-Proto": ""}, "http://testserver"),
        ({"Forwarded": "host=$(date)", "X-Forwarded-Host": "a'b", "Host": "a b"}, "http://127.0.0.1:8000"),
    ],
)
def test_address_behind_a_proxy_is_that_of_the_proxy(paged: Site, headers: dict[str, str], address: str) -> None:
    found = paged.client.get("/", headers=headers).text
    assert f"curl {address}/v1/chat/completions \\" in found
    assert found == PAGE.read_text(encoding="utf-8").replace("http://127.0.0.1:8000", address)


def test_forwarded_host_has_no_other_effect() -> None:
    with Site(ServerOptions(hosts=frozenset({"localhost"}))) as site:
        extend(site)
        for headers in ({}, {"X-Forwarded-Host": "localhost"}, {"Forwarded": "host=localhost"}):
            error_of(site.client.get("/", headers=headers), 403)


def test_other_methods_are_told_where_the_api_is(paged: Site) -> None:
    for path in ("/", "/v1"):
        refused = paged.client.post(path, json={})
        assert refused.headers["Allow"] == "GET, HEAD, OPTIONS"
        assert "/v1/chat/completions" in error_of(refused, 405)["message"]
    assert paged.client.options("/").headers["Allow"] == "GET, HEAD, OPTIONS"


def test_plugin_can_bring_another_page(site: Site) -> None:
    router = APIRouter()

    @router.get("/")
    async def show() -> str:
        return "mine"

    extend(site, one=lambda server: server.add_router(router))
    assert site.client.get("/").json() == "mine"
