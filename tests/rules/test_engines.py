"""The table of what each engine honours is that of the backends' descriptions, which import no engine.

Run this file to write it into the page.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import get_args

from parallax_core.api import BackendSpec, EngineSpec, RequestField

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/engines.md"
FIRST = "| Field of a request |"


def list_engines() -> dict[str, EngineSpec]:
    """Return the description of each engine of this repository."""
    found: dict[str, EngineSpec] = {}
    for folder in sorted(ROOT.glob("plugins/backend_*")):
        specs: list[BackendSpec] = import_module(f"parallax_{folder.name}.plugin").parallax_register_backends()
        found |= {spec.name: spec.engine.load() for spec in specs if spec.engine is not None}
    return found


def make_table(engines: dict[str, EngineSpec]) -> str:
    """Return the table: a line for each field, a column for each engine."""
    lines = [
        f"{FIRST} {' | '.join(f'`{name}`' for name in engines)} |",
        f"|---|{'---|' * len(engines)}",
    ]
    for field in get_args(RequestField):
        cells = ["yes" if field in spec.honours else "a 400" for spec in engines.values()]
        lines.append(f"| `{field}` | {' | '.join(cells)} |")
    for title, attribute in (("the largest `n`", "max_answers"), ("the largest `logprobs`", "max_logprobs")):
        lines.append(f"| {title} | {' | '.join(str(getattr(spec, attribute)) for spec in engines.values())} |")
    lines.append(f"| `seed` | {' | '.join(spec.seed for spec in engines.values())} |")
    lines.append(f"| supported releases | {' | '.join(f'`{spec.supported}`' for spec in engines.values())} |")
    return "\n".join(lines)


def find_table(page: str) -> str:
    """Return the table in the page."""
    return page[page.index(FIRST) :].partition("\n\n")[0].rstrip()


def test_table_of_engines_is_that_of_their_descriptions() -> None:
    assert find_table(PAGE.read_text(encoding="utf-8")) == make_table(list_engines()), f"run {Path(__file__).name}"


def test_field_that_an_engine_lacks_is_a_400() -> None:
    spec = EngineSpec(module="m", distributions=("m",), supported=">=1", builds={}, honours=frozenset({"top_k"}))
    table = make_table({"m": spec})
    assert "| `top_k` | yes |" in table
    assert "| `min_p` | a 400 |" in table


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.replace(find_table(text), make_table(list_engines())), encoding="utf-8")
