"""Generates the page of the contracts: every name of `parallax_core.api`, with its docstrings, fields and methods.

``python -m tests.rules.contractpage`` writes the page.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from parallax_core import api

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/contracts.md"

HEAD = """# Contracts

Every name that a plugin may import from `parallax_core.api`, as the code has it. Nothing else of core is for plugins.
[Hooks](hooks.md) says how things are offered, [testing a plugin](testing.md) how they are tested, and
[what may change](../explanation/change-policy.md) what you can rely on.

This page is made of the code: `python -m tests.rules.contractpage` writes it.
"""

PARTS = {
    "What plugins offer, and what they are asked": ("contracts",),
    "Tools for backends": ("backendkit", "checkpoint", "pages", "sampling"),
    "What travels between nodes": ("wire",),
    "All the rest": ("base", "config", "hookspecs"),
}
"""The parts of the page, and the packages of core that each describes."""

DESCRIBED_ELSEWHERE = {"parallax_core.hookspecs"}
"""Modules whose docstrings have a page of their own."""
SPECIAL = {"__init__", "__call__", "__aiter__"}
SECTION = re.compile(r"^(Args|Returns|Raises|Yields):$")
PROVISIONAL = "*Provisional: see [what may change](../explanation/change-policy.md#provisional-names).*"
LONGEST = 160
"""The most characters of a value that is shown."""


def list_modules(module: str = "parallax_core/api/__init__.py") -> dict[str, list[str]]:
    """Return the names of an API, by the module that defines them."""
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {str(node.module): [alias.name for alias in node.names] for node in imports}


def write_page() -> str:
    """Return the page."""
    modules = list_modules()
    lines = [HEAD]
    for title, packages in PARTS.items():
        lines.append(f"# {title}\n")
        for module in (each for each in modules if each.split(".")[1] in packages):
            lines += Module(module, set(modules[module])).write()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


class Module:
    """A module, and its names that plugins may use."""

    def __init__(self, name: str, names: set[str], root: Path = ROOT) -> None:
        self.name, self.names = name, names
        self.source = (root / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")
        self.tree = ast.parse(self.source)
        self.classes = {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}

    def write(self) -> Iterator[str]:
        """Yield the section of the module, with its names in source order."""
        title, rest = re.split(r"(?:[:.]\s+|\.$)", write_text(ast.get_docstring(self.tree)), maxsplit=1)
        yield f"## {title}\n"
        yield f"`{self.name}`\n"
        if rest and self.name not in DESCRIBED_ELSEWHERE:
            yield f"{rest[0].upper()}{rest[1:]}\n"
        for node, after in zip(self.tree.body, [*self.tree.body[1:], None], strict=True):
            if (name := find_name(node)) in self.names:
                yield f"### `{name}`\n"
                if name in api.PROVISIONAL:
                    yield f"{PROVISIONAL}\n"
                yield from self.write_definition(node)
                yield f"{read_string(after)}\n"

    def write_definition(self, node: ast.stmt) -> Iterator[str]:
        """Yield the description of one name."""
        match node:
            case ast.ClassDef():
                yield f"{write_text(ast.get_docstring(node))}\n"
                yield from (f"A kind of `{base}`.\n" for base in list_bases(node) if base in self.names)
                yield "\n".join([*self.write_members(node), ""])
            case ast.FunctionDef():
                yield f"`{write_signature(node)}`\n"
                yield f"{write_text(ast.get_docstring(node))}\n"
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                yield self.write_value(value)

    def write_members(self, owner: ast.ClassDef) -> Iterator[str]:
        """Yield a line for each field, property and method in source order, after those of private bases."""
        for base in list_bases(owner):
            if base in self.classes and base not in self.names:
                yield from self.write_members(self.classes[base])
        for node, after in zip(owner.body, [*owner.body[1:], None], strict=True):
            match node:
                case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                    default = f" = {ast.unparse(node.value)}" if node.value else ""
                    yield write_item(f"{name}: {ast.unparse(node.annotation)}{default}", read_string(after))
                case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name in SPECIAL or not node.name.startswith(
                    "_"
                ):
                    yield write_item(write_signature(node), write_text(ast.get_docstring(node)))

    def write_value(self, value: ast.expr) -> str:
        """Return a value with its comments, or nothing if it is long."""
        segment = ast.get_source_segment(self.source, value) or ""
        if "#" in segment:
            return f"```python\n{segment}\n```\n"
        return f"`{ast.unparse(value)}`\n" if len(ast.unparse(value)) <= LONGEST else ""


def find_name(node: ast.stmt) -> str:
    """Return the name that a statement defines, or an empty string."""
    match node:
        case ast.ClassDef() | ast.FunctionDef():
            return node.name
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return ""


def list_bases(node: ast.ClassDef) -> list[str]:
    """Return the names of the bases of a class."""
    return [ast.unparse(base).partition("[")[0] for base in node.bases]


def write_item(head: str, text: str) -> str:
    """Return a list item whose text begins on the same line and continues below it."""
    if not text:
        return f"- `{head}`"
    first, _, rest = text.partition("\n\n")
    below = f"\n\n{textwrap.indent(rest, ' ' * 4)}\n" if rest else ""
    return f"- `{head}`: {' '.join(first.split())}{below}"


def write_signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the signature of a function without ``self``; a property is shown like a field."""
    returns = ast.unparse(node.returns) if node.returns else ""
    if any(ast.unparse(each) == "property" for each in node.decorator_list):
        return f"{node.name}: {returns}"
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix(", ")
    kind = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{kind}{node.name}({arguments}) -> {returns}"


def read_string(node: ast.stmt | None) -> str:
    """Return the text of a string statement, which is the docstring of the statement before it, or nothing."""
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return write_text(text)
    return ""


def write_text(text: str | None) -> str:
    """Return a docstring as Markdown, with single backticks, and lists for its sections."""
    lines: list[str] = []
    is_listed = False
    for line in (text or "").strip().replace("``", "`").splitlines():
        if found := SECTION.match(line.strip()):
            is_listed = True
            lines.append(f"{found[1]}:\n")
        else:
            lines.append(write_line(line.strip(), is_listed=is_listed))
    return "\n".join(lines).strip()


def write_line(line: str, *, is_listed: bool) -> str:
    """Return a line of a docstring; in a section, a line that begins with a name and a colon is a list item."""
    found = re.match(r"(\w+): (.*)", line) if is_listed else None
    return f"- `{found[1]}`: {found[2]}" if found else f"  {line}" if is_listed and line else line


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
    print(PAGE)
