"""Cuts the layers of a stage out of a model of transformers.

The model keeps its code, all of its layers and their numbers. A gate around each layer knows the layers of the run:
those before them pass their input on, the last of these brings in the hidden states, and the run ends after the last
layer. Layers of other stages have no weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from parallax_backend_torch.attention_hook import NAME, register_attention
from parallax_backend_torch.config import HINT
from parallax_backend_torch.conversions import Conversion, find_conversions
from parallax_backend_torch.kernels.linear import Packed
from parallax_backend_torch.tensor_file import NAME as TENSOR
from parallax_backend_torch.tensor_file import Selection
from parallax_backend_torch.weights import Weights
from parallax_core.api import LayerRange, ParallaxError, Unsupported


class StopAfterLayer(Exception):
    """Leaves the model after the last layer of a stage."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class Product:
    """Replaces the ``forward`` of a linear layer."""

    def __init__(self, packed: Packed) -> None:
        self._packed = packed
        self.seen: torch.Tensor | None = None
        """The last input, [tokens, width]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply: [..., in] to [..., out]."""
        self.seen = x.reshape(-1, x.shape[-1])
        return self._packed.apply(self.seen).unflatten(0, x.shape[:-1])


class Output:
    """A hook that keeps the output of a module."""

    def __init__(self) -> None:
        self.seen: torch.Tensor | None = None
        """The last output, [tokens, width]."""

    def __call__(self, module: object, given: object, output: torch.Tensor) -> None:
        """Keep the output; the module has run."""
        del module, given
        self.seen = output.reshape(-1, output.shape[-1])


class Gather:
    """Replaces the ``forward`` of an embedding."""

    def __init__(self, packed: Packed, scale: float) -> None:
        self._packed, self._scale = packed, scale

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Look up: [1, tokens] to [1, tokens, width]."""
        return self._packed.gather(tokens[0])[None] * self._scale


@dataclass(slots=True)
class Section:
    """The layers of the run in progress, and their input."""

    layers: LayerRange
    num_layers: int
    """The number of layers of the model."""
    hidden: torch.Tensor | None = None
    """The hidden states of the previous stage, [1, tokens, width]; None on the first stage."""


class LayerGate:
    """Replaces the ``forward`` of a layer: runs it if it belongs to the section.

    Args:
        index: the number of the layer.
        forward: runs the layer.
        section: shared by all layers of the model.
    """

    def __init__(self, index: int, forward: Any, section: Section) -> None:  # noqa: ANN401 -- of any layer
        self._index, self._forward, self._section = index, forward, section

    def __call__(self, hidden: torch.Tensor, *arguments: object, **named: object) -> object:
        """Run the layer, or pass on; leave the model by `StopAfterLayer` after a section without the last layer."""
        section, layers = self._section, self._section.layers
        if self._index < layers.start:
            return hidden if self._index < layers.start - 1 or section.hidden is None else section.hidden
        found = self._forward(hidden, *arguments, **named)
        if self._index == layers.stop - 1 and layers.stop < section.num_layers:
            raise StopAfterLayer(found[0] if isinstance(found, tuple) else found)
        return found


def sketch_model(folder: Path) -> Any:  # noqa: ANN401 -- a model of transformers
    """Return the model that a config.json describes, without weights.

    Raises:
        Unsupported: if transformers does not have the model, or its structure is not the usual one.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    register_attention()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, attn_implementation=NAME).eval()
    except Exception as error:  # the code of a model may raise anything
        raise Unsupported(f"transformers does not build this model: {error}", "choose another backend") from error
    decoder = model.get_decoder()
    parts = ("layers", "embed_tokens", "norm")
    missing = [part for part in parts if not hasattr(decoder, part)]
    if missing or decoder is model:
        raise Unsupported(f"this model has no {', '.join(missing)}, and cannot run on pages", "choose another backend")
    return model


def fill_model(model: Any, selection: Selection, weights: Weights) -> tuple[Section, Product | None]:  # noqa: ANN401
    """Load the weights of a stage into a model, and remove the parts that the stage does not run.

    Returns:
        The section that the layers of the model run, and the head, if the stage has one.

    Raises:
        Unsupported: if a tensor has another form in the checkpoint than in the model.
    """
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    ends = _fill_ends(decoder, head, selection, weights)
    section = Section(selection.layers, selection.num_layers)
    for index, layer in enumerate(decoder.layers):
        layer.forward = LayerGate(index, layer.forward, section)
    conversions = find_conversions(model, weights.file.names)
    skipped = {id(decoder.embed_tokens), id(head), *(() if selection.is_last else (id(decoder.norm),))}
    for path, module in model.named_modules():
        found = TENSOR.fullmatch(f"{path}.")
        layer = found[2] if found else None
        is_inside = layer is None or selection.layers.start <= int(layer) < selection.layers.stop
        if is_inside and id(module) not in skipped:
            prefix = found[1] if found else f"{path}."
            made = _convert(model, module, prefix, weights, conversions)
            _fill_module(module, prefix, weights, made)
    weights.file.check_left((".inv_freq",))
    return section, ends


def _fill_ends(decoder: Any, head: Any, selection: Selection, weights: Weights) -> Product | None:  # noqa: ANN401
    packed = weights.make_linear("embed_tokens", purpose="ends") if selection.has_embedding else None
    if selection.layers.start == 0 and packed:
        decoder.embed_tokens.forward = Gather(packed, find_scale(decoder.embed_tokens))
    if not selection.is_last:
        return None
    last = packed if selection.is_tied and packed else weights.make_linear("lm_head", purpose="ends")
    head.forward = Product(last)
    return head.forward  # type: ignore[no-any-return]


def find_scale(embedding: Any) -> float:  # noqa: ANN401 -- any module
    """Return the factor of an embedding's rows; 1 for most models."""
    plain = 1.0 if type(embedding) is torch.nn.Embedding else None
    scale = getattr(embedding, "scalar_embed_scale", plain)
    if scale is None:
        raise Unsupported(f"the embedding of this model is a {type(embedding).__name__}", "choose another backend")
    return float(scale)


def _convert(
    model: Any,  # noqa: ANN401 -- a model of transformers
    module: Any,  # noqa: ANN401 -- any module
    prefix: str,
    weights: Weights,
    conversions: Mapping[str, Conversion],
) -> dict[str, torch.Tensor]:
    """Return the own tensors of a module that the checkpoint has in another form, by name."""
    found = {}
    own = {**module._parameters, **module._buffers}  # noqa: SLF001 -- named_parameters would leave out shared ones
    for name, parameter in own.items():
        conversion = None if weights.has(prefix + name) else conversions.get(prefix + name)
        if parameter is not None and conversion is not None:
            found[name] = conversion.make(prefix + name, model, weights.read_plain)
            if found[name].shape != parameter.shape:
                raise _refuse(prefix + name)
    return found


def _fill_module(module: Any, prefix: str, weights: Weights, made: Mapping[str, torch.Tensor]) -> None:  # noqa: ANN401
    """Load the tensors of a module, without those of its submodules; ``made`` has those that need not be read."""
    if type(module) is torch.nn.Linear and not made:
        name = prefix.removesuffix(".")
        _check_shape(f"{name}.weight", module.weight, weights)
        module.forward = Product(weights.make_linear(name))
        return
    own = weights.within(prefix.removesuffix("."))
    for name, parameter in module._parameters.items():  # noqa: SLF001
        if parameter is not None:
            if name not in made:
                _check_shape(prefix + name, parameter, weights)
            found = own.keep_stack(made[name] if name in made else own.read_plain(name))
            module._parameters[name] = torch.nn.Parameter(found, requires_grad=False)  # noqa: SLF001
    for name, found in _remake_buffers(module, prefix, weights, made):
        module._buffers[name] = found.to(weights.factory.device)  # noqa: SLF001 -- with the dtype of transformers


def _check_shape(name: str, expected: torch.Tensor, weights: Weights) -> None:
    if not weights.has(name) or weights.read_shape(name) != tuple(expected.shape):
        raise _refuse(name)


def _refuse(name: str) -> Unsupported:
    message = f"the checkpoint has {name} in another form than transformers, or not at all"
    return Unsupported(message, "choose another backend")


def _remake_buffers(
    module: Any,  # noqa: ANN401 -- any module
    prefix: str,
    weights: Weights,
    converted: Mapping[str, torch.Tensor],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the buffers of a module: those in the checkpoint, and those computed from its settings."""
    names = [name for name, buffer in module._buffers.items() if buffer is not None]  # noqa: SLF001
    stored = [name for name in names if name in converted or weights.has(prefix + name)]
    for name in stored:
        yield name, converted[name] if name in converted else weights.read_plain(prefix + name)
    if len(stored) < len(names):
        try:
            made = type(module)(module.config)
        except Exception as error:  # the constructor of a module may raise anything
            raise ParallaxError(f"the buffers of {type(module).__name__} cannot be computed: {error}", HINT) from error
        yield from ((name, made._buffers[name]) for name in names if name not in stored)  # noqa: SLF001
