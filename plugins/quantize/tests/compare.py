"""Measures what a model loses in fewer bits, beside other programs' files of it.

    python -m plugins.quantize.tests.compare MODEL TEXT NAME=FOLDER_OR_FILE... [--positions N] [--out REPORT]

Reads each folder or GGUF file by our readers, computes in float32 by transformers, in windows of 512 tokens, and
prints for each, against the model in full: the change of perplexity, the Kullback-Leibler divergence of its
distributions from the model's, the share of positions with the same most likely token, and the bits a weight of the
matrices of layers. The report is written after every 10,000 positions, and a run goes on from it.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.record import describe_run, read_report, write_report
from parallax_core.api import silent
from parallax_formats import group_tensors
from parallax_source_pypi.convert import ConversionOptions, convert_gguf
from tests.support.quantised import as_tensor, read_folder

WINDOW, ROWS, SAVED = 512, 128, 10_000
"""Tokens that are read together, positions whose distributions are in memory, and positions between reports."""
SUMS = ("divergence", "same", "loss")
LAYER = re.compile(r"layers\.\d+\..*(proj|fc\d)\.weight$")


def open_model(plain: Path, coded: Path) -> tuple[Any, float]:
    """Return a model whose weights are those that a folder or a GGUF file stands for, and the bits of its layers."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if coded.is_file() else coded
        if coded.is_file():
            convert_gguf(coded, folder, silent, "", ConversionOptions(keeps_blocks=True))
        settings = json.loads((folder / "config.json").read_text())
        stored = read_folder(folder)
        matrices = group_tensors(settings, {name: as_tensor(each) for name, each in stored.items()})
        taken = {name for each in matrices.values() for name in each.names}
        sizes = {name: sum(stored[each].nbytes for each in matrix.names) for name, matrix in matrices.items()}
        sizes |= {name: each.nbytes for name, each in stored.items() if name not in taken}
        weights = {name: each.float() for name, each in stored.items() if name not in taken}
        for name, matrix in matrices.items():
            weights[name] = torch.from_numpy(matrix.read(0, matrix.num_rows)).reshape(matrix.shape)
    config = AutoConfig.from_pretrained(plain)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    unused = model.load_state_dict(weights, strict=False).unexpected_keys
    assert not unused, f"{coded} has {unused}, which the model does not"
    model.tie_weights()
    layers = [name for name in weights if LAYER.search(name)]
    return model, 8 * sum(sizes[name] for name in layers) / sum(weights[name].numel() for name in layers)


def list_windows(plain: Path, text: Path, most: int) -> Iterator[list[int]]:
    """Yield the tokens of a text in windows, of at most some positions in all."""
    tokens = Tokenizer.from_file(str(plain / "tokenizer.json")).encode(text.read_text(), add_special_tokens=False).ids
    for start in range(0, min(len(tokens) - 1, most), WINDOW):
        yield tokens[start : start + WINDOW + 1][: most - start + 1]


def measure(models: dict[str, Any], tokens: list[int]) -> dict[str, list[float]]:
    """Return the sums of a window for each model; the first one is the reference."""
    given, wanted = torch.tensor([tokens[:-1]]), torch.tensor(tokens[1:])[:, None]
    states = {name: model.model(given).last_hidden_state[0] for name, model in models.items()}
    sums = {name: [0.0] * len(SUMS) for name in models}
    for start in range(0, len(wanted), ROWS):
        part = slice(start, start + ROWS)
        found = {name: model.lm_head(states[name][part]).log_softmax(-1) for name, model in models.items()}
        full = next(iter(found.values()))
        for name, each in found.items():
            lost = (full.exp() * (full - each)).sum().item()
            same = (full.argmax(-1) == each.argmax(-1)).sum().item()
            news = (lost, same, -each.gather(1, wanted[part]).sum().item())
            sums[name] = [old + new for old, new in zip(sums[name], news, strict=True)]
    return sums


def describe(sums: dict[str, list[float]], bits: dict[str, float], positions: int) -> dict[str, Any]:
    """Return the figures of each model."""
    full = next(iter(sums.values()))
    return {
        name: {
            "bits": round(bits[name], 2),
            "perplexity": round(math.exp(loss / positions), 4),
            "perplexity_change": round(math.expm1((loss - full[2]) / positions), 4),
            "divergence": round(lost / positions, 5),
            "same_best": round(same / positions, 4),
        }
        for name, (lost, same, loss) in sums.items()
    }


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("coded", nargs="+", metavar="NAME=FOLDER_OR_FILE")
    parser.add_argument("--positions", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    paths = {"full": options.model, **{name: Path(path) for name, path in (each.split("=") for each in options.coded)}}
    before = read_report(options.out).get("state", {}) if options.out else {}
    opened = {name: open_model(options.model, path) for name, path in paths.items()}
    models, bits = ({name: each[at] for name, each in opened.items()} for at in range(2))
    sums = before.get("sums") or {name: [0.0] * len(SUMS) for name in paths}
    done = before.get("positions", 0)
    windows = list(list_windows(options.model, options.text, options.positions))
    for tokens in windows[done // WINDOW :]:
        for name, news in measure(models, tokens).items():
            sums[name] = [old + new for old, new in zip(sums[name], news, strict=True)]
        done, saved = done + len(tokens) - 1, done // SAVED
        if done // SAVED > saved or tokens is windows[-1]:
            found = describe(sums, bits, done)
            print(done, json.dumps(found), flush=True)
            about = {"model": options.model.name, "text": options.text.name, "positions": done, "window": WINDOW}
            command = ["plugins.quantize.tests.compare", options.model.name, options.text.name, *paths]
            state = {} if tokens is windows[-1] else {"state": {"sums": sums, "positions": done}}
            run = describe_run(command, ("torch", "transformers"))
            write_report(options.out, {**about, "formats": found, **state, **run})


if __name__ == "__main__":
    main()
