"""Makes tensors of transformers that a checkpoint has in another form, such as all experts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch

PREFIX = "model."
"""Of names in most checkpoints; names of a `TensorFile` are without it, and transformers' patterns may have it."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """How one tensor is made of others."""

    converter: Any
    """A ``WeightConverter`` of transformers; None: it has another name."""
    sources: dict[str, list[str]] = field(default_factory=dict)
    """The names of the tensors that each of its patterns matches, in order."""

    def make(self, target: str, model: Any, read: Callable[[str], torch.Tensor]) -> torch.Tensor:  # noqa: ANN401
        """Return the tensor ``target`` of a model of transformers; ``read`` returns a tensor of the checkpoint."""
        found: Any = {pattern: [read(name) for name in names] for pattern, names in self.sources.items()}
        for operation in self.converter.operations if self.converter else ():
            found = operation.convert(
                found,
                source_patterns=self.converter.source_patterns,
                target_patterns=self.converter.target_patterns,
                full_layer_name=target,
                model=model,
                config=model.config,
                missing_keys=None,
            )
        (made,) = found.values()
        return made if self.converter else made[0]


def find_conversions(model: Any, names: Collection[str]) -> dict[str, Conversion]:  # noqa: ANN401 -- of transformers
    """Return the tensors of a model that a checkpoint has in another form, such as all experts of a layer, by name.

    Args:
        model: of transformers, without weights.
        names: the tensors of a checkpoint.
    """
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import (
            WeightConverter,
            WeightRenaming,
            apply_converters,
            apply_renamings,
            dot_natural_key,
        )
    except ImportError:  # these are no public API: another version reads what has the form of its own tensors
        return {}

    known = get_model_conversion_mapping(model)
    renamings = [each for each in known if isinstance(each, WeightRenaming)]
    converters = [each for each in known if isinstance(each, WeightConverter)]
    owners = {pattern: each for each in converters for pattern in each.source_patterns}
    found: dict[str, Conversion] = {}
    for name in sorted(names, key=dot_natural_key):
        renamed = apply_renamings(PREFIX + name, renamings)
        target, pattern = apply_converters(renamed, converters)
        short = target.removeprefix(PREFIX)
        if pattern is None and short != name:
            found[short] = Conversion(None, {"": [name]})
        if pattern is not None and len(owners[pattern].target_patterns) == 1:
            found.setdefault(short, Conversion(owners[pattern])).sources.setdefault(pattern, []).append(name)
    return found
