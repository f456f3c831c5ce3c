"""Loads a model folder into memory, or the layers of one stage, layer by layer."""

from __future__ import annotations

import itertools
import logging
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from parallax_backend_mlx.checkpoint import FETCH_REST, REFETCH, read_json
from parallax_backend_mlx.config import check_objects, normalise
from parallax_backend_mlx.family_config import fill_family, translate_family
from parallax_backend_mlx.memory import find_room
from parallax_backend_mlx.missing_tensors import Weights, fill_absent, fill_holes, find_spoilt
from parallax_backend_mlx.model_file import find_classes, list_fields
from parallax_backend_mlx.model_fixes import correct_model, keep_corrections
from parallax_backend_mlx.model_slice import ModelSlice, keep_model, slice_model
from parallax_backend_mlx.packed import Packed, choose_dtype, rename_tensors
from parallax_backend_mlx.runtime import Module, dequantize_model, flatten_tree, load_model, mx, tree_unflatten
from parallax_backend_mlx.sizes import is_packed
from parallax_backend_mlx.tensors import name_dtype
from parallax_core.api import DType, LayerRange, ParallaxError, StagePlan, Unsupported, count_layers, format_bytes

Classes = Callable[[Mapping[str, Any]], tuple[Any, type]]
"""Returns the class that builds a model, and the class of its arguments, for a config.json."""
DTYPES: dict[DType, mx.Dtype] = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
OTHER_BACKENDS = "choose --backend vllm or --backend sglang, which do, or the model in full precision"
MISSING_ARGUMENT = re.compile(r"missing \d+ required (?:positional|keyword-only) arguments?: '(\w+)'")
"""Python's error of a dataclass without one of its fields, which mlx-lm makes of config.json."""
FURTHER = re.compile(r"(?:model\.)?(?:language_model\.)?(?:model\.)?layers\.(\d+)\.")
"""The beginning of a tensor's name in a numbered layer of the text model."""
FAULTS = ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError
"""What mlx-lm raises of settings that make no sense."""
MISFIT = "the files may be incomplete, or of a form mlx-lm does not read: fetch the model again, or try another backend"
MAX_REASON = 300
"""The most characters quoted from an error of mlx-lm, which may list every tensor."""

T = TypeVar("T")
logger = logging.getLogger(__name__)


class SliceBuilder:
    """Builds a model for mlx-lm to load, and cuts out its slice once the names of all weights are known.

    The tensors of a checkpoint may change the model, as for a tied head.

    Args:
        layers: the layers to keep.
        tensors: the file of each tensor of the checkpoint.
        holes: tensors whose bytes are missing in files that are present.
        classes: finds the classes of the model; see `find_classes`.
        packed: the packed weights, if they are unpacked here.
    """

    def __init__(
        self,
        layers: LayerRange,
        tensors: Mapping[str, str],
        holes: Collection[str],
        classes: Classes,
        packed: Packed | None = None,
    ) -> None:
        self._layers, self._tensors, self._holes, self._classes = layers, tensors, holes, classes
        self._packed = packed
        self._model: Any = None
        self._model_slice: ModelSlice | None = None
        self.has_absent = False

    def find_classes(self, config: Mapping[str, Any]) -> tuple[Any, type]:
        """Return the function that builds the model, and the class of its arguments."""
        model_class, arguments_class = self._classes(config)

        def build(arguments: object) -> Module:
            self._model = model_class(arguments)
            self._model.sanitize = self._sanitize
            return self._model  # type: ignore[no-any-return]

        return build, arguments_class

    def _sanitize(self, weights: Weights) -> Weights:
        """Rename and join weights for the model, and keep those of the layers."""
        del self._model.sanitize
        weights = {name: array for name, array in weights.items() if name in self._tensors}
        names = self._tensors
        if self._packed:
            weights, names = self._packed.unpack(weights, self._holes), rename_tensors(self._packed.config, names)
        absent = fill_holes(weights, self._holes) | fill_absent(names, weights, self._model)
        self.has_absent = bool(absent)
        everything = keep_corrections(self._model, weights | absent)
        if hasattr(self._model, "sanitize"):
            everything = self._model.sanitize(everything)
        self._model_slice = slice_model(self._model, self._layers)
        return {name: array for name, array in everything.items() if self._model_slice.owns(name)}

    def take_slice(self) -> ModelSlice:
        """Return the slice of the model."""
        assert self._model_slice is not None
        return self._model_slice


@dataclass(frozen=True, slots=True)
class Sketch:
    """The layers of a plan as mlx-lm builds them, with weights that are not read yet."""

    model_slice: ModelSlice
    config: dict[str, Any]
    """The settings that mlx-lm was given."""
    has_absent: bool
    """Whether placeholders stand for tensors of missing files."""


def sketch_network(
    plan: StagePlan, tensors: Mapping[str, str], holes: Collection[str], *, reads_packed: bool = False
) -> Sketch:
    """Return the layers of ``plan``, not evaluated; see `load_network`. ``reads_packed``: packed weights are read.

    Raises:
        Unsupported: if mlx-lm cannot run the architecture as in config.json, or not these layers alone.
        ParallaxError: if the weights do not fit the architecture.
    """
    config = _read_settings(plan.model)
    with _explaining(plan.model, tensors):
        changes = _translate_config(config, list_fields(config, plan.blocks), tensors)
    classes: Classes = partial(find_classes, adapter_file=plan.blocks)
    packed = _find_packed(plan, config, reads=reads_packed)
    if packed:
        changes |= {"quantization": None, "quantization_config": None}
    if plan.layers is None:
        whole = partial(_find_whole, classes, count_layers(config) or 0, packed)
        model_slice = keep_model(_build_model(plan.model, changes, whole, tensors))
        has_absent = False
    else:
        kept = drop_further(dict(tensors), count_layers(config) or 0)
        builder = SliceBuilder(plan.layers, kept, holes, classes, packed)
        _build_model(plan.model, changes, builder.find_classes, tensors)
        model_slice, has_absent = builder.take_slice(), builder.has_absent
    _check_dtypes(model_slice.model, plan.model)
    return Sketch(model_slice, {**config, **changes}, has_absent)


def drop_further(named: dict[str, T], count: int) -> dict[str, T]:
    """Return ``named`` without the tensors of layers from ``count`` on: heads of multi-token prediction."""
    numbers = {name: FURTHER.match(name) for name in named}
    return {name: each for name, each in named.items() if not (found := numbers[name]) or int(found[1]) < count}


def _find_packed(plan: StagePlan, config: Mapping[str, Any], *, reads: bool) -> Packed | None:
    """Return the packed weights of a model, if they are unpacked here."""
    if not is_packed(config):
        return None

    def is_wanted(name: str) -> bool:
        layer = FURTHER.match(name)
        return reads and (not layer or plan.layers is None or plan.layers.start <= int(layer[1]) < plan.layers.stop)

    return Packed(plan.model, config, is_wanted, DTYPES[choose_dtype(plan.dtype, unpacks=True)])


def _find_whole(classes: Classes, count: int, packed: Packed | None, config: Mapping[str, Any]) -> tuple[Any, type]:
    """Return the function that builds a whole model of ``count`` layers, and the class of its arguments."""
    model_class, arguments_class = classes(config)

    def build(arguments: object) -> Module:
        model: Any = model_class(arguments)
        sanitize = getattr(model, "sanitize", dict)

        def keep(weights: Weights) -> Weights:
            del model.sanitize
            named = drop_further(packed.unpack(weights) if packed else weights, count)
            kept: Weights = sanitize(keep_corrections(model, named))
            return kept

        model.sanitize = keep
        return model  # type: ignore[no-any-return]

    return build, arguments_class


def sketch_settings(plan: StagePlan) -> None:
    """Build the layers of ``plan`` by config.json alone, where no headers are here; see `sketch_network`.

    Raises:
        Unsupported: as `sketch_network`.
        ParallaxError: if mlx-lm cannot build the model from these settings.
    """
    config = _read_settings(plan.model)
    model_class: Any
    arguments_class: Any
    model_class, arguments_class = find_classes(config, plan.blocks)
    with _explaining(plan.model, {}):
        changes = _translate_config(config, list_fields(config, plan.blocks), ())
        model = model_class(arguments_class.from_dict({**config, **changes}))
        if plan.layers is not None:
            slice_model(model, plan.layers)


def _read_settings(folder: Path) -> dict[str, Any]:
    config = read_json(folder / "config.json")
    check_objects(config)
    return config


def load_network(
    plan: StagePlan, tensors: Mapping[str, str], holes: Collection[str] = frozenset()
) -> tuple[ModelSlice, int]:
    """Return the layers of ``plan``, evaluated, and the bytes of their weights.

    Only the weights of these layers are read, and those of the embedding and the head if the stage has them.

    Args:
        plan: the model, its layers and options.
        tensors: the file of each tensor of the checkpoint; for a part of the model, files may be missing.
        holes: tensors whose bytes are missing in files that are present; only for a part of the model.

    Raises:
        Unsupported: if mlx-lm cannot run the architecture as in config.json, or not these layers alone.
        ParallaxError: if weights of these layers are missing, or do not fit the architecture or the memory.
    """
    _check_holes(plan, holes)
    room, has_packed = find_room(), is_packed(_read_settings(plan.model))
    sketch = sketch_network(plan, tensors, holes, reads_packed=True)
    model_slice, has_absent = sketch.model_slice, sketch.has_absent
    model = model_slice.model
    _convert_model(model, choose_dtype(plan.dtype, unpacks=has_packed))
    correct_model(model, sketch.config)
    total = sum(array.nbytes for _, array in _list_parameters(model))
    if total > room:
        needs, has = format_bytes(total), format_bytes(room)
        message = f"the weights of {plan.model.name} need {needs} of memory, but only {has} are free"
        raise ParallaxError(message, "close other programs, or choose a smaller model or --dtype float16")
    _evaluate_parameters(model, plan, total)
    if has_absent and (name := find_spoilt(_list_parameters(model))):
        raise ParallaxError(_describe_absent(name, plan, tensors), FETCH_REST if holes else REFETCH)
    return model_slice, total


def _translate_config(config: Mapping[str, Any], fields: frozenset[str], tensors: Collection[str]) -> dict[str, Any]:
    """Return the settings to add to config.json, or to replace in it, for a model file that reads ``fields``."""
    changes = translate_family(config)
    changes |= normalise({**config, **changes}, fields, tensors)
    return changes | fill_family({**config, **changes})


def _check_holes(plan: StagePlan, holes: Collection[str]) -> None:
    """Refuse layers with a missing tensor; other modules are checked when their tensors are known."""
    layers = plan.layers or LayerRange(0, 0)
    found = {name: re.search(r"\blayers\.(\d+)\.", name) for name in holes}
    own = [name for name, layer in found.items() if layer and layers.start <= int(layer[1]) < layers.stop]
    if own:
        message = (
            f"of layers {layers.start}-{layers.stop}, {min(own)} is not on this machine, one of {len(own)} tensors"
        )
        raise ParallaxError(message, FETCH_REST)


def _build_model(folder: Path, changes: Mapping[str, Any], classes: Classes, tensors: Mapping[str, str]) -> Module:
    """Build the model with its weights still on disk; MLX reads them when they are first needed."""
    with _explaining(folder, tensors):
        loaded = load_model(folder, lazy=True, strict=True, model_config=dict(changes), get_model_classes=classes)
    model: Module = loaded[0]
    return model


@contextmanager
def _explaining(folder: Path, tensors: Mapping[str, str]) -> Iterator[None]:
    """Explain an error of mlx-lm as one of config.json, or of the weights."""
    try:
        yield
    except FAULTS as error:
        config = read_json(folder / "config.json")
        method = (config.get("quantization_config") or {}).get("quant_method")
        if method and not is_packed(config):
            message = f"the weights of {folder} are stored as {method}, which mlx-lm does not read for this model"
            raise Unsupported(message, OTHER_BACKENDS) from error
        if (key := _find_absent_key(error)) and key not in config:
            message = f"config.json has no {key!r}, which mlx-lm needs for a model of type {config.get('model_type')}"
            raise Unsupported(
                message, "add it as in the original model, fetch the model again, or try another backend"
            ) from error
        reason = f"{_shorten(str(error))}{_name_file(str(error), tensors)}"
        message = f"the weights and config.json of {folder} do not fit together: {reason}{_name_defaults(config)}"
        raise ParallaxError(message, MISFIT) from error


def _name_defaults(config: Mapping[str, Any]) -> str:
    """Name the settings that config.json leaves to the defaults of mlx-lm."""
    absent = sorted(list_fields(config) - config.keys() - {*(config.get("text_config") or ())})
    return f"; of {config.get('model_type')} config.json has no {', '.join(map(repr, absent))}" if absent else ""


def _find_absent_key(error: Exception) -> str | None:
    """Return the setting that mlx-lm misses in config.json, if that is the error."""
    if isinstance(error, KeyError) and str(error.args[0]).isidentifier():
        return str(error.args[0])
    found = MISSING_ARGUMENT.search(str(error)) if isinstance(error, TypeError) else None
    return found[1] if found else None


def _check_dtypes(model: Module, folder: Path) -> None:
    """Refuse weights that MLX reads as integers, as it does 8-bit floats, unless they belong to a quantised layer.

    Quantised layers have scales too.
    """
    parameters = _list_parameters(model)
    scaled = {name.rpartition(".")[0] for name, _ in parameters if "scale" in name.rpartition(".")[2]}
    for name, array in parameters:
        layer, _, kind = name.rpartition(".")
        if kind == "weight" and layer not in scaled and not mx.issubdtype(array.dtype, mx.floating):
            message = f"{name} of {folder} is stored in a form that mlx-lm reads as {name_dtype(array.dtype)}"
            raise Unsupported(message, "choose a model in float32, float16 or bfloat16, or one quantised by mlx-lm")


def _convert_model(model: Module, dtype: DType) -> None:
    """Choose the dtype to compute in: as stored on a GPU; float32 on a CPU, where others are far slower."""
    if mx.default_device() == mx.Device(mx.gpu):
        if dtype != "auto":
            _cast_parameters(model, DTYPES[dtype])
        return
    target = DTYPES["float32" if dtype == "auto" else dtype]
    # Scales first, so that their results are not rounded to their old dtype.
    _cast_parameters(model, target)
    if any(name.endswith(".scales") for name, _ in _list_parameters(model)):
        logger.info("weights dequantised dtype=%s device=cpu", name_dtype(target))
        dequantize_model(model)
        _cast_parameters(model, target)


def _cast_parameters(model: Module, dtype: mx.Dtype) -> None:
    # A model file names the parameters that must stay in float32.
    predicate = getattr(model, "cast_predicate", None) if dtype != mx.float32 else None
    casts = [
        (name, array.astype(dtype))
        for name, array in _list_parameters(model)
        if mx.issubdtype(array.dtype, mx.floating) and (predicate is None or predicate(name))
    ]
    model.update(tree_unflatten(casts))


def _evaluate_parameters(model: Module, plan: StagePlan, total: int) -> None:
    """Read the weights one layer at a time, so that only one layer is in memory in both dtypes."""
    task, done = f"load {plan.model.name}", 0
    plan.progress(task, 0, total)
    for _, group in itertools.groupby(_list_parameters(model), key=lambda item: _name_layer(item[0])):
        arrays = [array for _, array in group]
        mx.eval(arrays)
        done += sum(array.nbytes for array in arrays)
        plan.progress(task, done, total)


def _list_parameters(model: Module) -> list[tuple[str, mx.array]]:
    return flatten_tree(model.parameters())  # type: ignore[no-untyped-call]


def _describe_absent(name: str, plan: StagePlan, tensors: Mapping[str, str]) -> str:
    """Return an error that names the missing file: one with a tensor of the same layer, or of the same name."""
    layer = _name_layer(name)
    part = layer[layer.find("layers.") :] if layer != name else name
    absent = {tensor: file for tensor, file in tensors.items() if not (plan.model / file).exists()}
    files = [file for tensor, file in absent.items() if part in tensor]
    if not absent:
        return f"only a part of {plan.model} is on this machine, without {name}, which the wanted layers need"
    return f"{plan.model} lacks {[*files, *absent.values()][0]}, which has weights of the wanted layers"


def _name_file(reason: str, tensors: Mapping[str, str]) -> str:
    """Return the file of the first tensor named in ``reason``, in parentheses; empty if it names none."""
    found = next((name for name in re.findall(r"[\w.]+\w", reason) if name in tensors), None)
    return f" (in {tensors[found]})" if found else ""


def _name_layer(name: str) -> str:
    found = re.match(r".*?layers\.\d+\.", name)
    return found.group() if found else name


def _shorten(text: str) -> str:
    return textwrap.shorten(text or "no reason given", MAX_REASON)
