"""Generates the page of the parts of families: the names of `parallax_models.api` and `parallax_backend_torch.api`.

``python -m tests.rules.partspage`` writes the page.
"""

from __future__ import annotations

import re

from tests.rules.contractpage import ROOT, Module, list_modules

PAGE = ROOT / "docs/reference/parts.md"
HEAD = """# Parts of model families

What an adapter may be made of, and the layers of a family on the backend `torch`, as the code has it.
[Write a model adapter](../how-to/write-a-model-adapter.md) says how they are used. These names belong to their
distributions, not to the API of core: they keep their meaning until the minor version of the distribution changes.

This page is made of the code: `python -m tests.rules.partspage` writes it.
"""
PARTS = {
    "Parts of adapters": ("plugins/models", "parallax_models.api"),
    "Parts of layers on PyTorch": ("plugins/backend_torch", "parallax_backend_torch.api"),
}
"""The parts of the page: the folder of a distribution, and its module of names."""


def write_page() -> str:
    """Return the page."""
    lines = [HEAD]
    for title, (folder, api) in PARTS.items():
        lines.append(f"# {title}\n\nFrom `{api}`.\n")
        found = list_modules(f"{folder}/{api.replace('.', '/')}.py")
        for name, names in found.items():
            if "." in name:
                lines += Module(name, set(names), ROOT / folder).write()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
    print(PAGE)
