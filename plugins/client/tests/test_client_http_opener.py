"""Requests to this machine never go to a proxy; others follow the environment."""

from __future__ import annotations

import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from parallax_client.http_opener import complete_url, is_own, open_request


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST.", "app.localhost", "127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1"],  # noqa: S104
)
def test_this_machine_is_known_by_its_names(host: str) -> None:
    assert is_own(host)


@pytest.mark.parametrize("host", ["", "10.0.0.1", "example.org", "localhost.example.org", "128.0.0.1", "fe80::1%eth0"])
def test_others_are_not(host: str) -> None:
    assert not is_own(host)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("localhost:8000", "http://localhost:8000"),
        ("//host/v1", "http://host/v1"),
        ("https://host/v1", "https://host/v1"),
        ("[::1]:8000/v1", "http://[::1]:8000/v1"),
    ],
)
def test_url_without_a_scheme_is_http(given: str, url: str) -> None:
    assert complete_url(given) == url


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"yes")

    def log_message(self, *args: object) -> None:
        del args


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_proxy_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/")
        with open_request(request, 5) as reply:
            assert reply.read() == b"yes"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
