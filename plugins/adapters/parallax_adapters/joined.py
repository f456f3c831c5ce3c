"""Fits an adapter to a model that has the same matrices joined to one, or apart, or by other names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from parallax_adapters.peft_experts import EXPERTS, GATE_UP, count_experts, find_stack, spell_module, split_stack
from parallax_adapters.peft_files import LowRank, to_floats
from parallax_core.api import Tensor, Unsupported

JOINED: Mapping[str, Sequence[str]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Matrices whose outputs are those of others one after another."""
TURNS = ("gate_even", "up_odd")
"""Names of gate and up, in a backend, of experts with a stack that has the outputs of both by turns."""
WHOLES = {part: whole for whole, parts in JOINED.items() for part in parts}
Sizes = Mapping[str, tuple[int, int]]
Modules = Mapping[str, LowRank]
Floats = npt.NDArray[np.float32]


def fit_modules(modules: Modules, sizes: Sizes) -> dict[str, LowRank]:
    """Return the matrices of an adapter by the modules that a model has; what it has in neither way stays as it is.

    Args:
        modules: by the name of the module from its layer on; a stack of experts counts as those of each.
        sizes: the inputs and outputs of the modules of the model, by their names as `spell_module` has them.

    Raises:
        Unsupported: if outputs that belong together, or experts, are not as many as those of the model.
    """
    modules = _spread(modules, sizes)
    found, apart = dict(modules), dict[str, dict[str, LowRank]]()
    for name, matrices in modules.items():
        stem, _, last = name.rpartition(".")
        parts = [f"{stem}.{part}" for part in JOINED.get(last, ())]
        whole = f"{stem}.{WHOLES.get(last, '')}"
        if name in sizes:
            continue
        if parts and all(part in sizes and part not in modules for part in parts):
            del found[name]
            found |= _split(name, matrices, {part: sizes[part][1] for part in parts})
        elif whole in sizes and whole not in modules:
            apart.setdefault(whole, {})[last] = found.pop(name)
    return found | {whole: _join(whole, parts, sizes[whole][1]) for whole, parts in apart.items()}


def _spread(modules: Modules, sizes: Sizes) -> dict[str, LowRank]:
    """Return the matrices of all modules, with those of stacks by expert."""
    found, counts = {}, count_experts(sizes)
    for name, each in modules.items():
        layer, stack = find_stack(name) or (name, "")
        if not stack or layer not in counts:
            found[spell_module(name)] = each
            continue
        if each.count != counts[layer]:
            raise Unsupported(f"{name} is of {each.count} experts, and this model has {counts[layer]}")
        for number, (a, b) in enumerate(split_stack(each.a, each.b, each.count)):
            expert = f"{layer}{EXPERTS}{number}"
            turns = [f"{expert}.{part}" for part in TURNS if stack == GATE_UP and f"{expert}.{part}" in sizes]
            for place, part in enumerate(turns):
                found[part] = LowRank(a, _keep(to_floats(b)[place :: len(turns)]), each.scale)
            if not turns:
                found[f"{expert}.{stack}"] = LowRank(a, b, each.scale)
    return found


def _split(name: str, matrices: LowRank, outputs: Mapping[str, int]) -> dict[str, LowRank]:
    """Return the matrices of modules by those of the one that has the outputs of all."""
    if (total := sum(outputs.values())) != matrices.b.shape[0]:
        raise Unsupported(f"{name} has {matrices.b.shape[0]} outputs, and its parts have {total} in this model")
    b, start, found = to_floats(matrices.b), 0, {}
    for part, count in outputs.items():
        found[part] = LowRank(matrices.a, _keep(b[start : start + count]), matrices.scale)
        start += count
    return found


def _join(name: str, parts: Mapping[str, LowRank], total: int) -> LowRank:
    """Return the matrices of a module by those of its parts, of which some may be missing."""
    places = _place(name, {part: each.b.shape[0] for part, each in parts.items()}, total)
    if len({each.a.shape[1] for each in parts.values()}) > 1:
        raise Unsupported(f"the parts of {name} have different inputs")
    b, column = np.zeros((total, sum(each.rank for each in parts.values())), np.float32), 0
    for part, each in parts.items():
        b[places[part] : places[part] + each.b.shape[0], column : column + each.rank] = to_floats(each.b) * each.scale
        column += each.rank
    return LowRank(_keep(np.concatenate([to_floats(each.a) for each in parts.values()])), _keep(b), 1.0)


def _place(name: str, counts: Mapping[str, int], total: int) -> dict[str, int]:
    """Return where the outputs of each part begin."""
    if name.endswith("gate_up_proj"):
        sizes = {"gate_proj": total // 2, "up_proj": total // 2}
    else:
        keys = next((counts[part] for part in ("k_proj", "v_proj") if part in counts), None)
        keys = (total - counts["q_proj"]) // 2 if keys is None else keys
        sizes = {"q_proj": total - 2 * keys, "k_proj": keys, "v_proj": keys}
    if sum(sizes.values()) != total or any(sizes[part] != count for part, count in counts.items()):
        raise Unsupported(f"{name} has {total} outputs in this model, and its parts {dict(counts)} in the adapter")
    places, start = {}, 0
    for part, count in sizes.items():
        places[part] = start
        start += count
    return places


def _keep(values: Floats) -> Tensor:
    return Tensor("float32", values.shape, np.ascontiguousarray(values).data.cast("B"))
