"""What a query has for no route is named in the response."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.server.letters import Site, error_of
from tests.unit.server.scripted import ScriptedSite

HEADER = "X-Ignored-Fields"


@pytest.mark.parametrize(
    ("path", "query", "named"),
    [
        ("/v1/models", {}, None),
        ("/v1/models", {"client_version": "0.50.0", "page": 2}, "client_version, page"),
        ("/v1/models/toy", {"api-version": "2024-10-21", "a b\n": "c"}, "api-version, a?b?"),
        ("/metrics", {"name[]": "up"}, "name??"),
        ("/health", {"_": 1}, "_"),
        ("/v1/cluster", {"verbose": ""}, "verbose"),
    ],
)
def test_parameters_without_effect_are_named(site: Site, path: str, query: dict[str, Any], named: str | None) -> None:
    for method in ("GET", "HEAD"):
        answer = site.client.request(method, path, params=query)
        assert (answer.status_code, answer.headers.get(HEADER)) == (200, named)


def test_parameters_of_kept_responses_are_checked(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path) as site:
        site.engine.scripts.append("Hello.")
        name = site.openai.responses.create(model="toy", input="hi").id
        include: Any = ["reasoning.encrypted_content"]
        assert site.openai.responses.retrieve(name, include=include, include_obfuscation=False).id == name
        assert len(site.openai.responses.input_items.list(name, include=include).data) == 1
        for path in (f"/v1/responses/{name}", f"/v1/responses/{name}/input_items"):
            assert HEADER not in site.http.get(path, params={"include": include, "include[]": include}).headers
            assert site.http.get(path, params={"before": "x"}).headers[HEADER] == "before"
            for field in ("include", "include[]"):
                assert "include" in error_of(site.http.get(path, params={field: "everything"}))["message"]
        error = error_of(site.http.get(f"/v1/responses/{name}", params={"include_obfuscation": True}))
        assert error["param"] == "include_obfuscation"
