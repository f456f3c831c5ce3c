"""The kit for model adapters: their shapes must match the tensors of checkpoints."""

from __future__ import annotations

import copy
import json
import math
import struct
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from parallax_core.base.errors import Unsupported
from parallax_core.base.files import read_object
from parallax_core.checkpoint.config_reader import LAYER_COUNTS
from parallax_core.contracts.border import list_borders
from parallax_core.contracts.model import HIDDEN, LayerShape, ModelAdapter, ModelShape, ModelSpec, Part
from parallax_core.contracts.tensor import ITEM_BYTES
from parallax_core.testing.promise import broken, expect

CALLED = "Their names in config.json"
BELONGS = "Return the part of the model to which the tensor of this name belongs"
PARTS = "a layer by its number, or ``before`` or ``after`` all layers"
NO_TENSOR = "if a checkpoint of this family has no such tensor"
WEIGHTS = "Parameters of the layer"
BEFORE = "Parameters before the layers: the embeddings"
AFTER = "Parameters after the layers: the final norm, and the output head unless it is tied"
TIED = "Whether the output head is the embedding, which then the first and the last stage hold"
ACTIVE = "Parameters used for one token: fewer than ``weights`` if there are experts"
KV = "Elements cached per token: keys and values of all heads, or a latent; 0 for a state"
STATE = "Elements kept per sequence, whatever its length"
WINDOW = "For a window: the number of tokens that a token attends to, itself included"
READ = "Read the shape of a model"
REFUSED = "if a setting asks for a feature that this family does not have; the message names the setting"

TAKES = "What a later layer takes crosses every border before that"
GIVES = "The planes that it makes or replaces; empty: ``hidden`` of the model's width"

NOWHERE = ("kit.no.such.tensor", "", "model.layers.x.weight")
FORMATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The contents of a model folder."""

    path: Path
    config: dict[str, Any]
    tensors: dict[str, tuple[int, ...]]
    """The shape of each tensor."""


class ModelConformance:
    """Holds the adapter of a family to its contract.

    Subclass it in a test module under a name that begins with ``Test``, and give `spec`, `refused` and
    `make_checkpoints`.
    """

    spec: ModelSpec
    refused: Sequence[tuple[str, Any]]
    """Settings of config.json, each with a value that this family cannot have."""

    def make_checkpoints(self, folder: Path) -> Sequence[Path]:
        """Return tiny models of the family, written below ``folder``; one tied and one not, if there are both.

        A model is a folder with config.json and safetensors files; `write_checkpoint` writes one. What the tensors
        hold does not matter, and their sizes should differ from each other.
        """
        raise NotImplementedError

    @property
    def adapter(self) -> ModelAdapter:
        """The adapter."""
        return self.spec.adapter.load()

    def test_family_answers_to_the_architecture(self, tmp_path: Path) -> None:
        """The architecture in config.json is one of ``architectures``."""
        for checkpoint in self._read_all(tmp_path):
            named = checkpoint.config.get("architectures") or []
            is_ours = any(name in self.spec.architectures for name in named)
            fault = f"{checkpoint.path.name} is a {named}, but this family has {self.spec.architectures}"
            assert is_ours, broken(fault, CALLED)

    def test_every_tensor_has_a_part(self, tmp_path: Path) -> None:
        """Each belongs to a layer there is, before the layers or after them; and each of these has some."""
        for checkpoint in self._read_all(tmp_path):
            num_layers = len(self.adapter.read_shape(checkpoint.config).layers)
            wanted: set[Part] = {*range(num_layers), "before", "after"}
            parts = set()
            for name in checkpoint.tensors:
                part = self._find(name)
                is_known = part in wanted or part == "every"
                assert is_known, broken(f"{name!r} belongs to {part!r}, with {num_layers} layers", PARTS)
                parts.add(part)
            missing = sorted(map(str, wanted - parts))
            assert not missing, broken(f"no tensor belongs to the parts {missing}", BELONGS)

    def test_layers_weigh_what_their_tensors_do(self, tmp_path: Path) -> None:
        """For each layer, ``weights`` is the number of elements of its tensors, and of its slice of those of every."""
        for checkpoint in self._read_all(tmp_path):
            found, slices = self._weigh(checkpoint), 0
            for index, layer in enumerate(self.adapter.read_shape(checkpoint.config).layers):
                fault = f"layer {index} of {checkpoint.path.name} has {found[index]} parameters, not {layer.weights}"
                more = layer.weights - found[index]
                assert more == 0 or (more > 0 and found["every"]), broken(fault, WEIGHTS)
                slices += more
            fault = f"the layers have {slices} parameters of tensors of every layer, which have {found['every']}"
            assert slices == found["every"], broken(fault, WEIGHTS)

    def test_ends_weigh_what_their_tensors_do(self, tmp_path: Path) -> None:
        """What comes before the layers and after them has as many parameters as the shape says."""
        for checkpoint in self._read_all(tmp_path):
            found, shape = self._weigh(checkpoint), self.adapter.read_shape(checkpoint.config)
            fault = f"before the layers of {checkpoint.path.name} are {found['before']} parameters"
            assert shape.before_weights == found["before"], broken(f"{fault}, not {shape.before_weights}", BEFORE)
            fault = f"after the layers of {checkpoint.path.name} are {found['after']} parameters"
            assert shape.after_weights == found["after"], broken(f"{fault}, not {shape.after_weights}", AFTER)

    def test_embedding_and_head_are_where_they_belong(self, tmp_path: Path) -> None:
        """A tensor [vocabulary, hidden] comes before the layers, and one after them unless the head is tied."""
        for checkpoint in self._read_all(tmp_path):
            shape = self.adapter.read_shape(checkpoint.config)
            matrix = (shape.vocab_size, shape.hidden_size)
            places = [self._find(name) for name, size in checkpoint.tensors.items() if size == matrix]
            assert "before" in places, broken(f"no tensor of {matrix} comes before the layers", BEFORE)
            has_head = "after" in places
            fault = f"is_tied is {shape.is_tied}, but an output head of {matrix} is {'' if has_head else 'not '}there"
            assert shape.is_tied != has_head, broken(fault, TIED)

    def test_numbers_make_sense(self, tmp_path: Path) -> None:
        """Nothing is zero that cannot be, and each layer remembers what its kind does."""
        for checkpoint in self._read_all(tmp_path):
            shape = self.adapter.read_shape(checkpoint.config)
            counts = (shape.hidden_size, shape.vocab_size, shape.context_length, shape.num_heads, shape.head_dim)
            is_sane = min(counts) > 0 and shape.num_kv_heads > 0 and shape.num_heads % shape.num_kv_heads == 0
            assert is_sane, broken(f"a model cannot have the shape {shape}", READ)
            for layer in shape.layers:
                check_layer(layer)

    def test_borders_follow_from_the_layers(self, tmp_path: Path) -> None:
        """A layer takes planes given before it, gives those taken after it, and reads the keys of an earlier one."""
        for checkpoint in self._read_all(tmp_path):
            shape = self.adapter.read_shape(checkpoint.config)
            try:
                list_borders(shape)
            except Unsupported as error:
                raise AssertionError(broken(f"{checkpoint.path.name}: {error.message}", TAKES)) from error
            for index, layer in enumerate(shape.layers):
                later = {name for other in shape.layers[index + 1 :] for name in other.takes} | set(shape.takes)
                check_planes(index, layer, later)

    def test_count_of_layers_that_no_model_has_is_refused(self, tmp_path: Path) -> None:
        """`Unsupported` before a description of each layer takes the memory."""
        for checkpoint in self._read_all(tmp_path):
            for name in LAYER_COUNTS:
                if name in checkpoint.config:
                    for count in (-1, 0, 10**9):
                        with expect(Unsupported, f"reading a model with {name} = {count}", REFUSED):
                            self.adapter.read_shape(_change(checkpoint.config, name, count))

    def test_tensor_of_nowhere_is_refused(self) -> None:
        """`Unsupported` for a name that no checkpoint of the family has."""
        for name in NOWHERE:
            with expect(Unsupported, f"looking for the tensor {name!r}", NO_TENSOR):
                self.adapter.find_part(name)

    def test_setting_the_family_lacks_is_refused_by_name(self, tmp_path: Path) -> None:
        """`Unsupported` that names the setting; and for a configuration with nothing in it."""
        for checkpoint in self._read_all(tmp_path):
            for name, value in self.refused:
                with expect(Unsupported, f"reading a model with {name} = {value!r}", REFUSED) as caught:
                    self.adapter.read_shape(_change(checkpoint.config, name, value))
                assert caught.error
                message = caught.error.message
                assert name in message, broken(f"the error for {name} = {value!r} is {message!r}", REFUSED)
        with expect(Unsupported, "reading an empty config.json", REFUSED):
            self.adapter.read_shape({})

    def test_same_configuration_gives_the_same_shape_and_stays_as_it_is(self, tmp_path: Path) -> None:
        """Reading leaves the configuration unchanged, and does not depend on earlier readings."""
        checkpoints = self._read_all(tmp_path)
        shapes = [self.adapter.read_shape(checkpoint.config) for checkpoint in checkpoints]
        for checkpoint, shape in zip(checkpoints, shapes, strict=True):
            config = copy.deepcopy(checkpoint.config)
            again = self._read_sealed(config)
            assert again == shape, broken(f"{checkpoint.path.name} was read as {shape}, and again as {again}", READ)
            assert config == checkpoint.config, broken("reading a configuration has changed it", READ)

    def _read_all(self, folder: Path) -> list[Checkpoint]:
        checkpoints = [read_checkpoint(path) for path in self.make_checkpoints(folder)]
        assert checkpoints, "make_checkpoints gives no checkpoint: there is nothing to compare the adapter with"
        return checkpoints

    def _read_sealed(self, config: dict[str, Any]) -> ModelShape:
        try:
            return self.adapter.read_shape(MappingProxyType(config))
        except (AttributeError, TypeError) as error:
            raise AssertionError(broken(f"read_shape needs more than a mapping: {error}", READ)) from error

    def _find(self, name: str) -> Part:
        try:
            return self.adapter.find_part(name)
        except Unsupported as error:
            raise AssertionError(broken(f"{name!r} of a checkpoint is refused: {error.message}", BELONGS)) from error

    def _weigh(self, checkpoint: Checkpoint) -> Counter[Part]:
        found: Counter[Part] = Counter()
        for name, size in checkpoint.tensors.items():
            found[self._find(name)] += math.prod(size)
        return found


def check_planes(index: int, layer: LayerShape, later: Collection[str]) -> None:
    """Check the planes that a layer gives; ``later`` are the names of those that are taken after it."""
    names = [plane.name for plane in layer.gives]
    is_whole = HIDDEN in layer.takes and (not names or HIDDEN in names) and len(set(names)) == len(names)
    assert is_whole, broken(f"layer {index} takes {layer.takes} and gives {names}", GIVES)
    left = [name for name in names if name not in later and name != HIDDEN]
    assert not left, broken(f"layer {index} gives {left}, and nothing after it takes that", TAKES)
    for plane in layer.gives:
        is_sane = min(plane.shape, default=0) > 0 and plane.dtype in {"", *ITEM_BYTES}
        assert is_sane, broken(f"layer {index} gives {plane}", GIVES)


def check_layer(layer: LayerShape) -> None:
    """Check that the numbers of a layer fit its kind."""
    is_active = 0 < layer.active_weights <= layer.weights - layer.table_weights
    assert is_active, broken(f"a layer has {layer.active_weights} active weights of {layer.weights}", ACTIVE)
    has_kv = layer.kind != "state"
    has_others = layer.kv_width == 0 and (layer.kind == "full" or layer.source is not None)
    is_fitting = (layer.kv_width > 0) == has_kv or has_others
    assert is_fitting, broken(f"a {layer.kind} layer has kv_width {layer.kv_width}", KV)
    has_state = layer.kind == "state" or (layer.kind == "full" and layer.kv_width > 0 and layer.state_width > 0)
    assert (layer.state_width > 0) == has_state, broken(f"a {layer.kind} layer has {layer}", STATE)
    has_window = layer.kind == "window"
    assert has_window or not layer.long_width, broken(f"a {layer.kind} layer has long_width {layer.long_width}", WINDOW)
    assert (layer.window > 0) == has_window, broken(f"a {layer.kind} layer has window {layer.window}", WINDOW)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read the configuration of a model folder and the headers of its safetensors files."""
    tensors: dict[str, tuple[int, ...]] = {}
    for file in sorted(path.glob("*.safetensors")):
        with file.open("rb") as stream:
            [size] = LENGTH.unpack(stream.read(LENGTH.size))
            header: Mapping[str, Any] = json.loads(stream.read(size))
        tensors |= {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    assert tensors, f"{path} has no safetensors file with tensors in it"
    return Checkpoint(path, read_object(path / "config.json"), tensors)


def write_checkpoint(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, Sequence[int]], dtype: str = "float32"
) -> Path:
    """Write a model folder whose tensors, of the shapes given, are all zero; return it."""
    path.mkdir(parents=True)
    header: dict[str, Any] = {}
    end = 0
    for name, shape in tensors.items():
        start, end = end, end + math.prod(shape) * ITEM_BYTES[dtype]
        header[name] = {"dtype": FORMATS[dtype], "shape": list(shape), "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(LENGTH.pack(len(encoded)) + encoded + bytes(end))
    (path / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    return path


def _change(config: Mapping[str, Any], name: str, value: object) -> dict[str, Any]:
    """Return a configuration with another setting, where the settings of the text are."""
    text = config.get("text_config")
    if isinstance(text, Mapping):
        return {**config, "text_config": {**text, name: value}}
    return {**config, name: value}
