"""Quantises a model that is named: what the command does."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from parallax_core.api import ModelFolder, Progress, StagePlan, Unsupported, read_config
from parallax_core.api.cli import PluginHost
from parallax_core.api.deployment import Catalog, find_backends, find_family, find_part, find_spec, open_stage
from parallax_core.api.source import find_locations, find_tokenizer
from parallax_quantize.calibration import WINDOW, LayerRunner, read_windows
from parallax_quantize.choice import choose
from parallax_quantize.folder import FolderWriter, appearing
from parallax_quantize.forms import Layout
from parallax_quantize.gguf.file import open_model
from parallax_quantize.model import Quantizer
from parallax_quantize.targets import Target, find_target

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def quantize_model(
    model: str, form: tuple[str, Layout, int], text: Path | None, out: Path | None, progress: Progress
) -> Path:
    """Write a model in fewer bits, and return the new folder.

    Args:
        model: its name.
        form: what it becomes, the layout, and the inputs that share a scale.
        text: what runs through its layers; None: each number is rounded by itself.
        out: the new folder; None: one in the current folder, by the names of model and form.
        progress: of fetching and quantising.
    """
    host = PluginHost.prepare()
    found = Catalog(host).fetch(model, progress)
    target = find_target(*form, find_dtype(found.path))
    folder = (out or Path(f"{name_model(found)}-{target.name}")).expanduser().absolute()
    quantizer = prepare(host, found, target, text)
    with appearing(folder, quantizer.choice.num_bytes) as scratch:
        quantizer.write(FolderWriter(scratch), progress)
    return folder


def write_gguf(model: str, form: str, out: Path | None, progress: Progress) -> Path:
    """Write a model as a GGUF file, and return its path.

    Args:
        model: its name.
        form: one of `parallax_quantize.gguf.mix.MIXES`.
        out: the new file; None: one in the current folder, by the names of model and form.
        progress: of fetching and quantising.
    """
    found = Catalog(PluginHost.prepare()).fetch(model, progress)
    opened, name = open_model(found.path, form), name_model(found)
    file = (out or Path(f"{name}-{form}.gguf")).expanduser().absolute()
    with appearing(file, opened.num_bytes, is_file=True) as path:
        opened.write(path, name, progress)
    return file


def prepare(host: PluginHost, found: ModelFolder, target: Target, text: Path | None) -> Quantizer:
    """Return what quantises a model, after all that can be refused.

    Raises:
        ParallaxError: if it cannot be quantised so.
    """
    family = find_family(host, read_config(found.path))
    if family is None:
        raise Unsupported(f"no installed plugin knows the family of {found.ref}", "`parallax models check` says more")
    choice = choose(found.path, target, partial(find_part, family.adapter))
    if text is None:
        return Quantizer(found.path, target, choice)
    spec = find_spec(host, read_config(found.path))
    if spec is None or "torch" not in spec.blocks:
        raise Unsupported(f"{family.name} has no layers for torch, which --calibrate needs", "quantise without it")
    offer = find_backends(host, "torch", "stage")[0]
    tokenizer = find_tokenizer(path.name for path in found.path.iterdir())
    if tokenizer != "tokenizer.json":
        raise Unsupported(f"{found.ref} has no tokenizer.json, which --calibrate needs", "quantise without it")
    config = read_config(found.path)
    context = config.get("text_config", config).get("max_position_embeddings", WINDOW)
    windows = read_windows(text, found.path / tokenizer, context)
    plan = StagePlan(model=found.path, listed_weights=found.listed_weights)
    return Quantizer(found.path, target, choice, LayerRunner(plan, partial(open_stage, host, offer), windows))


def find_dtype(folder: Path) -> torch.dtype:
    """Return the dtype of a model's matrices."""
    kinds = [each.kind for path in folder.glob("*.safetensors") for each in find_locations(path) if len(each.shape) > 1]
    return DTYPES.get(max(set(kinds), key=kinds.count), torch.bfloat16) if kinds else torch.bfloat16


def name_model(found: ModelFolder) -> str:
    """Return the last word of a model's name, without its revision or version."""
    return (
        found.ref.partition(":")[2].partition("@")[0].partition("==")[0].rstrip("/").rpartition("/")[2]
        or found.path.name
    )
