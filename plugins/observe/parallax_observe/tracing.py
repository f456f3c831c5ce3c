"""Sends an OpenTelemetry trace per request: its queue, prefill, decode and recoveries.

Needs the extra ``otel``. Spans are made after a request has ended, from the times its engine measured, so that they
cost nothing while it runs.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Protocol

from parallax_core.api import Finish, ParallaxError

CLOSE_S = 0.5
"""Seconds the server waits at its end for the last traces to be sent."""


class Tracer(Protocol):
    """Records requests that have ended."""

    def record(self, took_s: float, finish: Finish, parent: str) -> None:
        """Record a request that ended just now.

        Args:
            took_s: seconds from its arrival.
            finish: how it ended.
            parent: its ``traceparent`` header (W3C Trace Context), or an empty text.
        """

    def close(self) -> None:
        """Send the remaining traces, for at most `CLOSE_S` seconds."""


@dataclass(frozen=True, slots=True)
class TracePart:
    """A part of a request's time, in seconds from its arrival."""

    name: str
    start_s: float
    took_s: float


def split_time(took_s: float, finish: Finish) -> list[TracePart]:
    """Return the known parts of a request's time.

    The engine's part ends with the request; the time before it is the server's own, for reading and tokenizing.
    Recoveries are within the queue, prefill and decode. The times of stages, hops, sampling and detokenizing are sums
    over steps, each shown as one part that begins at the end of the queue.
    """
    timing = finish.timing
    if timing is None:
        return []
    inside = timing.queued_s + timing.prefill_s + timing.decode_s
    begin = max(0.0, took_s - inside)
    parts = [TracePart("read", 0.0, begin), TracePart("queue", begin, timing.queued_s)]
    begun = begin + timing.queued_s
    parts += [
        TracePart("prefill", begun, timing.prefill_s),
        TracePart("decode", begun + timing.prefill_s, timing.decode_s),
    ]
    parts += [TracePart("recovery", begin + pause.start_s, pause.took_s) for pause in timing.pauses]
    parts += [TracePart(f"stage {index}", begun, seconds) for index, seconds in enumerate(timing.stages_s)]
    parts += [TracePart(f"hop {index}", begun, seconds) for index, seconds in enumerate(timing.hops_s)]
    return [
        *parts,
        TracePart("sampling", begun, timing.sampling_s),
        TracePart("detokenize", begun, timing.detokenize_s),
    ]


class OtelTracer:
    """Sends traces to a collector over OTLP (HTTP, protobuf).

    Args:
        endpoint: of the collector, such as ``http://127.0.0.1:4318``.

    Raises:
        ParallaxError: if the extra is not installed.
    """

    def __init__(self, endpoint: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise ParallaxError("traces need OpenTelemetry", "pip install 'parallax-observe[otel]'") from error
        exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=5)
        resource = Resource.create({"service.name": "parallax"})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("parallax")

    def record(self, took_s: float, finish: Finish, parent: str) -> None:
        """Record a request that ended just now."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = TraceContextTextMapPropagator().extract({"traceparent": parent} if parent else {})
        now = time.time_ns()
        arrived = now - _to_ns(took_s)
        attributes: dict[str, str | int] = {
            "gen_ai.usage.input_tokens": finish.prompt_tokens,
            "gen_ai.usage.output_tokens": finish.output_tokens,
            "parallax.cached_tokens": finish.cached_tokens,
            "parallax.outcome": finish.reason,
        }
        kind = trace.SpanKind.SERVER
        span = self._tracer.start_span("request", context, kind, attributes=attributes, start_time=arrived)
        inner = trace.set_span_in_context(span, context)
        for part in split_time(took_s, finish):
            start = arrived + _to_ns(part.start_s)
            child = self._tracer.start_span(part.name, inner, start_time=start)
            child.end(start + _to_ns(part.took_s))
        if finish.reason in {"error", "timeout", "aborted"}:
            span.set_status(trace.StatusCode.ERROR, finish.message)
        span.end(now)

    def close(self) -> None:
        """Send the remaining traces, waiting at most `CLOSE_S` seconds for the collector."""
        sending = threading.Thread(target=self._provider.shutdown, name="parallax-traces", daemon=True)
        sending.start()
        sending.join(CLOSE_S)


def _to_ns(seconds: float) -> int:
    return int(seconds * 1e9)
