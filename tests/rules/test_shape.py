"""Files, functions and argument lists stay small enough to be read in one go, and everything is annotated."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MOST_FILE_LINES = 250
MOST_FUNCTION_LINES = 40
MOST_ARGUMENTS = 5
MOST_PLUGIN_LINES = 40

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("parallax_core/api/__init__.py", "lines"): "it lists what plugins may import, a name a line",
    ("plugins/batch/parallax_batch/cli.py:batch", "arguments"): "the options of a command are its arguments",
    ("plugins/chat/parallax_chat/cli.py:chat", "arguments"): "the options of a command are its arguments",
    **{
        (f"plugins/cluster/parallax_cluster/cli/{name}", "arguments"): "the options of a command are its arguments"
        for name in ("plan.py:plan", "profile.py:profile", "suggest.py:suggest")
    },
    ("plugins/cluster/parallax_cluster/cli/plan.py:plan", "lines"): "and each takes a line or three",
    (
        "plugins/cluster/parallax_cluster/cli/served_models.py:switch",
        "arguments",
    ): "the options of a command are its arguments",
    ("plugins/quantize/parallax_quantize/cli.py:quantize", "arguments"): "the options of a command are its arguments",
    ("plugins/simulate/parallax_simulate/cli.py:simulate", "arguments"): "the options of a command are its arguments",
    ("plugins/simulate/parallax_simulate/cli.py:simulate", "lines"): "and each takes a line or three",
    **{
        (f"plugins/backend_torch/parallax_backend_torch/triton_{name}", "arguments"): "tensors and sizes"
        for name in (
            *("kernels.py:_normalize", "kernels.py:_rotate", "attention.py:_attend", "attention.py:_combine"),
            *("heads.py:_place", "products.py:_begin", "products.py:_multiply"),
        )
    },
    **{
        (f"plugins/backend_torch/parallax_backend_torch/triton_{name}", "lines"): "a kernel is one function"
        for name in ("attention.py:_attend", "heads.py:_place", "products.py:_multiply")
    },
    ("plugins/bench/parallax_bench/cli.py:serve", "arguments"): "the options of a command are its arguments",
    ("plugins/bench/parallax_bench/cli.py:serve", "lines"): "and each takes a line or three",
}
"""Exceptions from the limits, as (file or file:function, rule), and the reasons."""

SOURCES = sorted(
    path for folder in (ROOT / "parallax_core", *ROOT.glob("plugins/*/parallax_*")) for path in folder.rglob("*.py")
)
BLANK = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}

Function = ast.FunctionDef | ast.AsyncFunctionDef
NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@lru_cache(maxsize=1)
def parse(source: str) -> ast.AST:
    """Return the tree of a file."""
    return ast.parse(source)


def find_code(source: str) -> set[int]:
    """Return the numbers of the lines with code: not blank, a comment or a docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in BLANK:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - set(find_docstrings(parse(source)))


def find_docstrings(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of docstrings, including those below an attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def find_functions(source: str) -> Iterator[tuple[str, Function]]:
    """Yield every function with its dotted name."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield prefix + child.name, child
            name = f"{prefix}{child.name}." if isinstance(child, NAMED) else prefix
            yield from visit(child, name)

    yield from visit(parse(source), "")


def list_arguments(function: Function) -> list[ast.arg]:
    """Return the arguments of a function that a caller gives, without self and cls."""
    given = function.args
    return [arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs) if arg.arg not in {"self", "cls"}]


def find_faults(name: str, source: str) -> Iterator[tuple[str, str, int]]:
    """Yield (where, rule, size) for everything too large or not annotated."""
    most = MOST_PLUGIN_LINES if name.endswith("/plugin.py") else MOST_FILE_LINES
    code = find_code(source)
    if len(code) > most:
        yield name, "lines", len(code)
    for function_name, function in find_functions(source):
        own = range(function.lineno, (function.end_lineno or function.lineno) + 1)
        yield from find_function_faults(f"{name}:{function_name}", function, len(code.intersection(own)))


def find_function_faults(where: str, function: Function, lines: int) -> Iterator[tuple[str, str, int]]:
    """Yield (where, rule, size) for one function with ``lines`` lines of code."""
    arguments = list_arguments(function)
    starred = [arg for arg in (function.args.vararg, function.args.kwarg) if arg]
    bare = [arg for arg in (*arguments, *starred) if arg.annotation is None]
    if lines > MOST_FUNCTION_LINES:
        yield where, "lines", lines
    if len(arguments) > MOST_ARGUMENTS:
        yield where, "arguments", len(arguments)
    if bare or function.returns is None:
        yield where, "annotations", len(bare) + (function.returns is None)


def test_sources_keep_their_shape_but_for_exceptions_that_are_needed() -> None:
    faults = [
        fault
        for path in SOURCES
        for fault in find_faults(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]
    assert [fault for fault in faults if fault[:2] not in EXCEPTIONS] == []
    assert EXCEPTIONS.keys() - {fault[:2] for fault in faults} == set()


LONG_FILE = "\n".join(f"x{i} = {i}" for i in range(MOST_FILE_LINES + 1))
LONG_FUNCTION = "def f() -> None:\n" + "    x = 1\n" * MOST_FUNCTION_LINES
WIDE_FUNCTION = "class C:\n    def f(self, a: int, b: int, c: int, *, d: int, e: int, f: int) -> None: ..."


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (LONG_FILE, ("a.py", "lines", MOST_FILE_LINES + 1)),
        (LONG_FUNCTION, ("a.py:f", "lines", MOST_FUNCTION_LINES + 1)),
        (WIDE_FUNCTION, ("a.py:C.f", "arguments", 6)),
        ("async def f(a) -> None: ...", ("a.py:f", "annotations", 1)),
        ("def f(*a, **b): ...", ("a.py:f", "annotations", 3)),
    ],
)
def test_rules_catch_what_they_are_for(source: str, fault: tuple[str, str, int]) -> None:
    assert list(find_faults("a.py", source)) == [fault]


def test_rules_count_only_code() -> None:
    comments = "# why\n\n" * MOST_FILE_LINES
    assert len(find_code(f'"""Says\nwhat it is."""\n{comments}x = 1\n"""Its meaning."""\n')) == 1


def test_rules_hold_plugins_to_fewer_lines() -> None:
    source = "\n".join(f"x{i} = {i}" for i in range(MOST_PLUGIN_LINES + 1))
    assert list(find_faults("a/plugin.py", source)) == [("a/plugin.py", "lines", MOST_PLUGIN_LINES + 1)]
