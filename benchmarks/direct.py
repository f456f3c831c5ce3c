"""A library that generates, called directly and timed; runs in the environment of that library, for `peer_torch`.

    PYTHON benchmarks/direct.py transformers FOLDER DTYPE THREADS
    PYTHON benchmarks/direct.py llama FILE DTYPE THREADS

The first line it writes says what it is. Then, for each line that it reads, ``{"prompts": [[id, ...], ...], "tokens":
n}``, it generates so many tokens after all prompts at once, greedily, whatever ends a text, and writes the seconds at
which each token was there, counted from when it was asked. It imports nothing of this repository.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any, TextIO

Generate = Callable[[list[list[int]], int], list[float]]


def open_transformers(folder: str, dtype: str, threads: int) -> Generate:
    """Return what generates with one static batch of transformers; prompts are of one length."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def generate(prompts: list[list[int]], tokens: int) -> list[float]:
        begun, times = time.perf_counter(), []

        def note(_ids: object, scores: object) -> object:
            times.append(time.perf_counter() - begun)
            return scores

        # It stands in for the model's own, which would end at the end of a text.
        config = transformers.GenerationConfig(do_sample=False, max_new_tokens=tokens, pad_token_id=0)
        batch = torch.tensor(prompts)
        with torch.inference_mode():
            model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                generation_config=config,
                logits_processor=transformers.LogitsProcessorList([note]),
            )
        return [*times[:-1], time.perf_counter() - begun]

    return generate


def open_llama(file: str, _dtype: str, threads: int) -> Generate:
    """Return what generates with llama.cpp, one prompt at once, as its file says weights are kept."""
    llama_cpp: Any = importlib.import_module("llama_cpp")
    model = llama_cpp.Llama(file, n_ctx=2048, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False)

    def generate(prompts: list[list[int]], tokens: int) -> list[float]:
        [prompt] = prompts
        begun, times = time.perf_counter(), []
        for _ in model.generate(prompt, temp=0.0, repeat_penalty=1.0):
            times.append(time.perf_counter() - begun)
            if len(times) == tokens:
                break
        return times

    return generate


OPENERS = {"transformers": open_transformers, "llama": open_llama}
PACKAGES = {"transformers": ("transformers", "torch"), "llama": ("llama-cpp-python",)}


def answer_lines(generate: Generate, given: TextIO, said: TextIO) -> None:
    """Answer every line."""
    for line in given:
        asked = json.loads(line)
        print(json.dumps(generate(asked["prompts"], asked["tokens"])), file=said, flush=True)


def main(arguments: Sequence[str]) -> None:
    """Load, say what was loaded, and answer."""
    kind, path, dtype, threads = arguments
    # What libraries print goes where it does not stand between the answers.
    said, sys.stdout = sys.stdout, sys.stderr
    generate = OPENERS[kind](path, dtype, int(threads))
    about = {"threads": int(threads), "dtype": dtype, **{name: metadata.version(name) for name in PACKAGES[kind]}}
    print(json.dumps(about), file=said, flush=True)
    answer_lines(generate, sys.stdin, said)


if __name__ == "__main__":
    main(sys.argv[1:])
