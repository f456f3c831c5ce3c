"""Measures how many small faults in core the tests catch: plants one at a time, and runs the tests of its package.

    python -m tests.support.mutants --number 200 --seed 1 --out build/mutants.json

Mutants are drawn by the seed from all places of ``parallax_core`` but its kits, where a comparison, a condition, a
number, a sum, a statement or a return value can be another (the operators of mutmut, without those for texts, which
tests rightly do not compare). Each is planted in a copy of the tree. First the tests of its own module run, then
those that import the module, then all unit tests of its package; the first that fails or hangs catches it. A run that
was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

from benchmarks.record import describe_run, read_report, write_report

ROOT = Path(__file__).parents[2]
KITS = "parallax_core/testing/"
LIMIT_S = 300
"""Seconds after which tests that hang have caught a mutant."""
PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", "-o", "timeout=60")
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


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted fault, and what became of it."""

    file: str
    index: int
    line: int
    before: str
    after: str
    caught_by: str
    """The tests that ran when it was caught; empty: it survived."""


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
        case ast.Raise() | ast.AugAssign() | ast.Delete():
            return ast.Pass()
        case ast.Return(value=ast.expr()) if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            return ast.Return(ast.Constant(None))
    return None


def _is_log(value: ast.expr) -> bool:
    return ast.unparse(value).startswith("logger.")


def list_places(folder: Path) -> list[Place]:
    """Return all places of core below ``folder`` where a fault can be planted."""
    files = sorted(path.relative_to(folder).as_posix() for path in (folder / "parallax_core").rglob("*.py"))
    return [
        Place(file, index)
        for file in files
        if not file.startswith(KITS)
        for index, node in enumerate(_walk((folder / file).read_text()))
        if change(node) is not None
    ]


def _walk(source: str) -> Iterator[ast.AST]:
    """Yield the nodes of a module; those of annotations and types, which nothing runs, as modules without content."""
    tree = ast.parse(source)
    typed = {id(part) for node in ast.walk(tree) for each in _list_types(node) for part in ast.walk(each)}
    return (ast.Module([], []) if id(node) in typed else node for node in ast.walk(tree))


def _list_types(node: ast.AST) -> list[ast.AST]:
    found = [getattr(node, name, None) for name in ("annotation", "returns")]
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        found.append(node)
    return [each for each in found if each is not None]


def plant(source: str, index: int) -> tuple[str, ast.AST, ast.AST]:
    """Return a module with a fault, and the node before and after."""
    tree = ast.parse(source)
    node = list(ast.walk(tree))[index]
    new = change(node)
    assert new is not None, "it was chosen since it can be changed"
    planted = _Replacement(node, new).visit(tree)
    return ast.unparse(ast.fix_missing_locations(planted)), node, new


class _Replacement(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the new node instead of the old one."""
        return self._new if node is self._old else self.generic_visit(node)


def list_tests(folder: Path, file: str) -> list[list[str]]:
    """Return the tests that may catch a fault in a file, the nearest first."""
    path = Path(file).relative_to("parallax_core")
    mirrored = Path("tests/unit", path.parent, f"test_{path.stem}.py")
    module = f"parallax_core.{'.'.join(path.with_suffix('').parts)}"
    tests = sorted(each for each in (folder / "tests/unit").rglob("test_*.py") if module in each.read_text())
    importing = [each.relative_to(folder).as_posix() for each in tests if each != folder / mirrored]
    package = Path("tests/unit", *path.parent.parts)
    stages = [[mirrored.as_posix()] if (folder / mirrored).exists() else [], importing]
    return [*(each for each in stages if each), [package.as_posix()] if (folder / package).exists() else ["tests/unit"]]


def judge(folder: Path, place: Place) -> Mutant:
    """Plant a fault in a copy of the tree, and run tests until one catches it."""
    target = folder / place.file
    source = target.read_text()
    planted, before, after = plant(source, place.index)
    target.write_text(planted)
    try:
        caught = next((tests for tests in list_tests(folder, place.file) if _fails(folder, tests)), [])
    finally:
        target.write_text(source)
    line = int(getattr(before, "lineno", 0))
    return Mutant(place.file, place.index, line, _show(before), _show(after), " ".join(caught)[:200])


def _show(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0][:100]


def _fails(folder: Path, tests: list[str]) -> bool:
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}
    run = ("timeout", "-k", "5", str(LIMIT_S), *PYTEST, *tests)
    return subprocess.run(run, cwd=folder, env=environment, capture_output=True, check=False).returncode != 0


def run_all(places: Sequence[Place], judged: Callable[[Mutant], None], num_copies: int, base: Path) -> None:
    """Judge faults in several copies of the tree at once."""
    copies: SimpleQueue[Path] = SimpleQueue()
    for number in range(num_copies):
        folder = base / f"copy{number}"
        if not folder.exists():
            command = ("git", "worktree", "add", "--detach", str(folder), "HEAD")
            subprocess.run(command, cwd=ROOT, check=True)
        copies.put(folder)

    def run(place: Place) -> None:
        folder = copies.get()
        try:
            judged(judge(folder, place))
        finally:
            copies.put(folder)

    with ThreadPoolExecutor(num_copies) as pool:
        list(pool.map(run, places))


def main(arguments: Sequence[str] | None = None) -> None:
    """Plant, count, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--copies", type=int, default=2, help="faults that are tried at once")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/mutants", help="where the copies are")
    parser.add_argument("--out", type=Path, default=ROOT / "build/mutants.json")
    options = parser.parse_args(arguments)
    chosen = random.Random(options.seed).sample(list_places(ROOT), options.number)
    found: list[dict[str, Any]] = read_report(options.out).get("mutants", [])
    done, lock = {(each["file"], each["index"]) for each in found}, threading.Lock()

    def note(mutant: Mutant) -> None:
        with lock:
            found.append(asdict(mutant))
            caught = sum(bool(each["caught_by"]) for each in found)
            print(len(found), f"{caught / len(found):.0%}", mutant, flush=True)
            command = ["tests.support.mutants", "--number", str(options.number), "--seed", str(options.seed)]
            write_report(options.out, {"caught": caught, "mutants": found, **describe_run(command)})

    places = [each for each in chosen if (each.file, each.index) not in done]
    run_all(places, note, options.copies, options.folder)


if __name__ == "__main__":
    main()
