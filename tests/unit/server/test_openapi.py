from __future__ import annotations

from tests.unit.server.letters import Site

ASKED, CHANGED = "400 401 403", "408 413 415 429"
ERRORS = {
    "": ["GET /version"],
    "401 403": ["GET /metrics", "GET /v1/cluster", "GET /v1/cluster/events", "GET /v1/cluster/models"],
    ASKED: ["GET /v1/cluster/history", "GET /v1/log", "GET /v1/requests"],
    "401 403 404": ["GET /v1/models/{model_id}", "GET /v1/settings"],
    f"{ASKED} 404 429": [
        "DELETE /v1/responses/{response_id}",
        "GET /v1/responses/{response_id}",
        "GET /v1/responses/{response_id}/input_items",
    ],
    f"{ASKED} 404 {CHANGED} 500 503": [
        "POST /v1/chat/completions",
        "POST /v1/completions",
        "POST /v1/embeddings",
        "POST /v1/responses",
        "POST /v1/responses/compact",
    ],
    f"{ASKED} 404 {CHANGED} 500 529": ["POST /v1/messages", "POST /v1/messages/count_tokens"],
    f"{ASKED} 404 {CHANGED} 503": [
        "POST /v1/cluster/rebalance",
        "POST /v1/nodes/{node}/drain",
        "POST /v1/nodes/{node}/resume",
        "POST /v1/replicas/{rank}/drain",
        "POST /v1/replicas/{rank}/readmit",
        "POST /v1/responses/{response_id}/cancel",
    ],
    f"{ASKED} 404 408 409 413 415 429 503": ["POST /v1/cluster/models"],
    "503": ["GET /health", "GET /ready"],
}
"""The errors that clients have to expect of routes, as their authors describe them."""


def test_routes_describe_the_errors_that_clients_have_to_expect() -> None:
    with Site() as site:
        paths = site.client.get("/openapi.json").json()["paths"]
    described = {
        f"{method.upper()} {path}": sorted(status for status in operation["responses"] if status >= "400")
        for path, methods in paths.items()
        for method, operation in methods.items()
    }
    for statuses, routes in ERRORS.items():
        assert {route: described[route] for route in routes} == dict.fromkeys(routes, statuses.split())
