"""Finds places where a fault can be planted, and plants it: for good, or beside the statement as it was."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

PLUGINS = tuple(f"plugins/{name}" for name in ("cluster", "api_anthropic", "api_responses"))
"""What was core once."""
PACKAGES = ("parallax_core", *(f"{plugin}/parallax_{Path(plugin).name}" for plugin in PLUGINS))
KITS = "parallax_core/testing/"
LOGS = tuple(f"logger.{level}" for level in ("debug", "info", "warning", "error", "exception", "log"))
TEXTS = (*LOGS, "warnings.warn", "assert_never", "TypeVar", "lru_cache")
"""Calls whose arguments are texts, types, or how much is kept."""
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fault is planted."""

    file: str
    index: int
    """Of its node, in the order of `ast.walk`."""

    @property
    def name(self) -> str:
        """What identifies it in a commit."""
        return f"{self.file}:{self.index}"


def list_places(folder: Path) -> list[Place]:
    """Return all places below ``folder`` where a fault can be planted."""
    found = (path.relative_to(folder).as_posix() for name in PACKAGES for path in (folder / name).rglob("*.py"))
    return [
        Place(file, index)
        for file in sorted(found)
        if not file.startswith(KITS)
        for index, node in enumerate(_walk((folder / file).read_text()))
        if change(node) is not None
    ]


def _walk(source: str) -> Iterator[ast.AST]:
    """Yield the nodes of a module; those without behaviour as modules without content, so that indices stay."""
    tree = ast.parse(source)
    left = {id(part) for node in ast.walk(tree) for each in _list_idle(node) for part in ast.walk(each)}
    return (ast.Module([], []) if id(node) in left else node for node in ast.walk(tree))


def _list_idle(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a node in which no fault can change behaviour: types, texts of the log, what never runs."""
    found: list[ast.AST] = _list_types(node)
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() if "abstractmethod" in map(ast.unparse, node.decorator_list):
            found += node.body
        case ast.Call() if ast.unparse(node.func).endswith(TEXTS):
            found += [*node.args, *node.keywords]
        case (
            ast.If(test=ast.Name("TYPE_CHECKING"))
            | ast.Raise(exc=ast.Name("NotImplementedError") | ast.Call(ast.Name("AssertionError")))
            | ast.Subscript(value=ast.Name("Literal"))
            | ast.keyword(arg="indent" | "stacklevel")
        ):
            found.append(node)
    return found


def _list_types(node: ast.AST) -> list[ast.AST]:
    return [each for name in ("annotation", "returns") if (each := getattr(node, name, None)) is not None]


def plant(source: str, index: int) -> tuple[ast.AST, ast.AST, ast.AST]:
    """Return a module with a fault, and the node before and after."""
    tree = ast.parse(source)
    node = list(ast.walk(tree))[index]
    new = change(node)
    assert new is not None, "it was chosen since it can be changed"
    return _Replacement(node, new).visit(tree), node, new


def change(node: ast.AST) -> ast.AST | None:
    """Return what takes the place of a node; None: it is left as it is."""
    new = _change_statement(node) or _change_value(copy.deepcopy(node))
    return None if new is None else ast.copy_location(new, node)


def _change_value(new: Any) -> ast.AST | None:
    match new:
        case ast.Compare(ops=[single]):
            new.ops = [COMPARED[type(single)]()]
        case ast.BoolOp():
            new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
        case ast.If() | ast.While() | ast.IfExp():
            new.test = ast.UnaryOp(ast.Not(), new.test)
        case ast.BinOp() if type(new.op) in COMPUTED:
            new.op = COMPUTED[type(new.op)]()
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            new.value = number + 1
        case _:
            return None
    return cast("ast.AST", new)


def _change_statement(node: ast.AST) -> ast.AST | None:
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()) if not _is_log(node.value):
            return ast.Pass()
        case ast.Delete(targets=targets) if all(isinstance(target, ast.Name) for target in targets):
            return None  # of arguments that are not used: it changes nothing
        case ast.Raise() | ast.AugAssign() | ast.Delete():
            return ast.Pass()
        case ast.Return(value=ast.Constant(value=False)):
            return ast.Return(ast.Constant(True))  # None would count as the same
        case ast.Return(value=ast.expr()) if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            return ast.Return(ast.Constant(None))
    return None


def _is_log(value: ast.expr) -> bool:
    return ast.unparse(value).startswith((*LOGS, "assert_never("))


class _Replacement(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the new node instead of the old one."""
        return self._new if node is self._old else self.generic_visit(node)


def put_switches(folder: Path, places: Sequence[Place]) -> None:
    """Put the statement of each place twice into a copy of the tree, with a fault and without, and a switch.

    What runs as its module is imported is left as it is.
    """
    for file in sorted({place.file for place in places}):
        source = (folder / file).read_text()
        tree = ast.parse(source)
        visitor = _Switches(tree, source, {place.index: place for place in places if place.file == file})
        (folder / file).write_text(ast.unparse(ast.fix_missing_locations(visitor.visit(tree))))


def has_switch(folder: Path, place: Place) -> bool:
    """Return whether there is a switch for a place in a copy of the tree."""
    return repr(place.name) in (folder / place.file).read_text()


class _Switches(ast.NodeTransformer):
    def __init__(self, tree: ast.Module, source: str, places: dict[int, Place]) -> None:
        self._source = source
        self._numbers = {id(node): number for number, node in enumerate(ast.walk(tree))}
        self._places = places
        self._depth = 0

    def visit(self, node: ast.AST) -> Any:
        """Return a statement, with a switch for each place in it."""
        if not isinstance(node, ast.stmt):
            return self.generic_visit(node)
        own = [self._numbers[id(each)] for each in _walk_own(node)] if self._depth else []
        number, is_function = self._numbers[id(node)], isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        self._depth += is_function
        found = cast("ast.stmt", self.generic_visit(node))
        self._depth -= is_function
        for place in (self._places[index] for index in own if index in self._places):
            nodes = list(ast.walk(ast.parse(self._source)))
            new = change(nodes[place.index])
            assert new is not None, "it was chosen since it can be changed"
            planted = cast("ast.stmt", _Replacement(nodes[place.index], new).visit(nodes[number]))
            call = f"__import__('tests.support.mutant_switch', fromlist=['']).is_on({place.name!r})"
            found = ast.If(ast.parse(call, mode="eval").body, [planted], [found])
        return found


def _walk_own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a statement and its parts, but not the statements in it."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt):
            yield from _walk_own(child)
