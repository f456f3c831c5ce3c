"""A small server that misbehaves, for the terminal's client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from parallax_client.client import Client


class Peer:
    """A server that gives one prepared answer to everything, or that to questions and then nothing until it may end."""

    def __init__(self) -> None:
        self.status, self.body = 200, b""
        self.models = self.asked = b""
        """The answer to the question for models, if it is another one; and the body of the last question."""
        self.headers: dict[str, str] = {}
        """Those that the prepared answer has besides its length."""
        self.requests: list[tuple[str, str, str | None]] = []
        """The method, the path and the authorization of each request."""
        self.missing_bytes = 0
        """How many bytes more than it has the answer says it has."""
        self.stream = b""
        """The beginning of an endless answer to every question, if there is one."""
        self.is_chunked = False
        self.may_end = threading.Event()
        peer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                peer.requests.append((self.command, self.path, self.headers["Authorization"]))
                if self.command == "POST":
                    peer.asked = self.rfile.read(int(self.headers["Content-Length"]))
                    if peer.stream:
                        self.send_response(200)
                        if peer.is_chunked:
                            self.send_header("Transfer-Encoding", "chunked")
                        self.end_headers()
                        self.wfile.write(peer.stream)
                        peer.may_end.wait()
                        return
                self.send_response(peer.status)
                body = peer.models if self.command == "GET" and peer.models else peer.body
                self.send_header("Content-Length", str(len(body) + peer.missing_bytes))
                for name, value in peer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815 -- the name the standard library asks for

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.client = Client(self.url)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))  # looks at its end so often
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def close(self) -> None:
        self.may_end.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()
