"""Traces reach a collector, and say where the time went."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from parallax_core.api import Finish, Pause, Timing
from parallax_core.api.dialect import ServerOptions
from parallax_observe.tracing import OtelTracer, split_time
from tests.unit.server.letters import Site

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(HTTPServer):
    """Takes traces over OTLP on loopback."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        super().__init__(("127.0.0.1", 0), Handler)

    def spans(self) -> list[Any]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        groups = [scope for each in requests for group in each.resource_spans for scope in group.scope_spans]
        return [span for group in groups for span in group.spans]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- its name in the library
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_request_becomes_a_trace_of_its_parts(collector: Collector) -> None:
    with Site(ServerOptions(otlp_endpoint=f"http://127.0.0.1:{collector.server_port}")) as site:
        site.ask(max_tokens=4)
        site.post(
            model="toy", max_tokens=1, messages=[{"role": "user", "content": "hi"}], headers={"traceparent": PARENT}
        )
    spans = collector.spans()
    first = [span for span in spans if span.trace_id == spans[0].trace_id]
    assert {span.name for span in first} == {
        "request",
        "read",
        "queue",
        "prefill",
        "decode",
        "stage 0",
        "hop 0",
        "sampling",
        "detokenize",
    }
    [root] = [span for span in first if span.name == "request"]
    for span in first:
        assert span is root or span.parent_span_id == root.span_id
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano + 1000
    assert any(span.trace_id.hex() == PARENT[3:35] for span in spans)


def test_collector_that_does_not_answer_does_not_keep_the_server_from_its_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracer = OtelTracer(f"http://127.0.0.1:{silent.getsockname()[1]}")
        tracer.record(1.0, Finish(reason="stop", prompt_tokens=1, output_tokens=1), "")
        began = time.monotonic()
        tracer.close()
        assert time.monotonic() - began < 2


def test_parts_follow_each_other_up_to_the_end() -> None:
    timing = Timing(
        queued_s=1,
        prefill_s=2,
        decode_s=3,
        stages_s=(1.5, 0.5),
        hops_s=(0.25, 0.75),
        sampling_s=0.125,
        pauses=(Pause(2.5, 0.5), Pause(4, 1)),
    )
    parts = split_time(7, Finish(reason="stop", prompt_tokens=1, output_tokens=1, timing=timing))
    assert [(part.name, part.start_s, part.took_s) for part in parts] == [
        ("read", 0, 1),
        ("queue", 1, 1),
        ("prefill", 2, 2),
        ("decode", 4, 3),
        ("recovery", 3.5, 0.5),
        ("recovery", 5, 1),
        ("stage 0", 2, 1.5),
        ("stage 1", 2, 0.5),
        ("hop 0", 2, 0.25),
        ("hop 1", 2, 0.75),
        ("sampling", 2, 0.125),
        ("detokenize", 2, 0.0),
    ]
    assert split_time(7, Finish(reason="stop", prompt_tokens=1, output_tokens=1)) == []
