"""Reads from the code of a family what its residual stream is between stages."""

from __future__ import annotations

import ast
import inspect
import textwrap


def reads_residual(kind: type) -> bool:
    """Tell whether a module that hands a residual on adds it to the hidden states after its last layer.

    In some families, such as EXAONE 4, the hidden states have it already, and the code of the last rank ignores it.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind.forward)))  # type: ignore[attr-defined]
    except (AttributeError, OSError, TypeError, SyntaxError):  # it has no code of its own
        return True
    ends = [
        node.end_lineno or 0
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "IntermediateTensors"
    ]
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "residual"]
    return not ends or not names or any(node.lineno > max(ends) for node in names)
