"""Calls a generation library directly and times it; runs in the library's own virtual environment, for `peers`.

    PYTHON benchmarks/direct.py transformers FOLDER DTYPE THREADS
    PYTHON benchmarks/direct.py llama FILE DTYPE THREADS [CONTEXT]
    PYTHON benchmarks/direct.py quantize SOURCE FORMAT TARGET

The first line of output describes the library. Then, for each line of input, ``{"prompts": [[id, ...], ...], "tokens":
n}``, it generates ``n`` greedy tokens after all prompts together, ignoring end-of-text tokens, and writes a JSON list
with the seconds from the request to each token. It imports nothing from this repository.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

Generate = Callable[[list[list[int]], int], list[float]]


def open_transformers(folder: str, dtype: str, threads: int, _context: int) -> Generate:
    """Return a function that generates with one static batch of transformers; prompts have equal lengths."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def generate(prompts: list[list[int]], tokens: int) -> list[float]:
        begun, times = time.perf_counter(), []

        def note(_ids: object, scores: object) -> object:
            times.append(time.perf_counter() - begun)
            return scores

        # Replaces the model's own configuration, which would stop at an end-of-text token.
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


def open_llama(file: str, _dtype: str, threads: int, context: int) -> Generate:
    """Return a function that generates with llama.cpp, for one prompt, with the weight format of the file."""
    llama_cpp: Any = importlib.import_module("llama_cpp")
    model = llama_cpp.Llama(file, n_ctx=context, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False)

    def generate(prompts: list[list[int]], tokens: int) -> list[float]:
        [prompt] = prompts
        begun, times = time.perf_counter(), []
        for _ in model.generate(prompt, temp=0.0, repeat_penalty=1.0):
            times.append(time.perf_counter() - begun)
            if len(times) == tokens:
                break
        return times

    return generate


def write_format(source: Path, target: Path, name: str) -> None:
    """Write ``source`` with llama.cpp's quantizer in a format such as Q4_0 to ``target``, which appears once whole.

    Eight bits keep its weights almost as they are; four in another format round them again, which costs quality only.
    """
    llama_cpp: Any = importlib.import_module("llama_cpp")
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
    settings.allow_requantize = True
    partial = target.with_suffix(".part")
    if status := llama_cpp.llama_model_quantize(str(source).encode(), str(partial).encode(), settings):
        message = f"llama.cpp could not write {source.name} in {name}: status {status}"
        raise RuntimeError(message)
    partial.rename(target)


OPENERS = {"transformers": open_transformers, "llama": open_llama}
PACKAGES = {"transformers": ("transformers", "torch"), "llama": ("llama-cpp-python",)}


def main(arguments: Sequence[str]) -> None:
    """Load the library, describe it, and serve requests."""
    kind, path, dtype, threads, *context = arguments
    if kind == "quantize":
        write_format(Path(path), Path(threads), dtype)
        return
    # Libraries print to stderr, so that their text does not mix with the answers.
    output, sys.stdout = sys.stdout, sys.stderr
    generate = OPENERS[kind](path, dtype, int(threads), int(context[0] if context else 2048))
    about = {"threads": int(threads), "dtype": dtype, **{name: metadata.version(name) for name in PACKAGES[kind]}}
    print(json.dumps(about), file=output, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(generate(request["prompts"], request["tokens"])), file=output, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
