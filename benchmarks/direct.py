"""Calls llama.cpp directly and times it; runs in the virtual environment of llama-cpp-python, for `peers`.

    PYTHON benchmarks/direct.py llama FILE FORMAT THREADS CONTEXT SEQUENCES
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
CHUNK = 512  # tokens of a batch


def open_llama(file: str, threads: int, context: int, sequences: int) -> Generate:
    """Return a function that generates with one static batch of llama.cpp."""
    llama: Any = importlib.import_module("llama_cpp")
    numpy: Any = importlib.import_module("numpy")
    settings = llama.llama_context_default_params()
    settings.n_ctx, settings.n_seq_max, settings.kv_unified = context * sequences, sequences, False
    settings.n_batch = settings.n_ubatch = CHUNK
    settings.n_threads = settings.n_threads_batch = threads
    model = llama.llama_model_load_from_file(file.encode(), llama.llama_model_default_params())
    state, vocabulary = llama.llama_init_from_model(model, settings), llama.llama_model_get_vocab(model)
    shape, batch = (llama.llama_vocab_n_tokens(vocabulary),), llama.llama_batch_init(CHUNK, 0, 1)

    def run(rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """Compute tokens, each with its place, its sequence, and whether the one after it is wanted; return those."""
        batch.n_tokens = len(rows)
        for number, (token, place, sequence, is_wanted) in enumerate(rows):
            batch.token[number], batch.pos[number], batch.logits[number] = token, place, is_wanted
            batch.n_seq_id[number], batch.seq_id[number][0] = 1, sequence
        assert not llama.llama_decode(state, batch), "llama.cpp could not compute a batch"
        wanted = [llama.llama_get_logits_ith(state, number) for number, row in enumerate(rows) if row[3]]
        return [int(numpy.ctypeslib.as_array(logits, shape).argmax()) for logits in wanted]

    def generate(prompts: list[list[int]], tokens: int) -> list[float]:
        begun, drawn = time.perf_counter(), list[int]()
        llama.llama_memory_clear(llama.llama_get_memory(state), 1)
        for number, prompt in enumerate(prompts):
            rows = [(token, place, number, place == len(prompt) - 1) for place, token in enumerate(prompt)]
            for start in range(0, len(rows), CHUNK):
                drawn += run(rows[start : start + CHUNK])
        times = [time.perf_counter() - begun]
        for step in range(tokens - 1):
            drawn = run([(token, len(prompts[number]) + step, number, True) for number, token in enumerate(drawn)])
            times.append(time.perf_counter() - begun)
        return times

    return generate


def write_format(source: Path, target: Path, name: str) -> None:
    """Write ``source`` with llama.cpp's quantizer in a format such as Q4_0 to ``target``, which appears once whole."""
    llama_cpp: Any = importlib.import_module("llama_cpp")
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
    settings.allow_requantize = True
    partial = target.with_suffix(".part")
    if status := llama_cpp.llama_model_quantize(str(source).encode(), str(partial).encode(), settings):
        message = f"llama.cpp could not write {source.name} in {name}: status {status}"
        raise RuntimeError(message)
    partial.rename(target)


def main(arguments: Sequence[str]) -> None:
    """Load the library, describe it, and serve requests."""
    kind, path, name, target, *sizes = arguments
    if kind == "quantize":
        write_format(Path(path), Path(target), name)
        print(json.dumps({"file": target}))
        return
    # Libraries print to stderr, so that their text does not mix with the answers.
    output, sys.stdout = sys.stdout, sys.stderr
    generate = open_llama(path, int(target), *map(int, sizes))
    version = metadata.version("llama-cpp-python")
    print(json.dumps({"threads": int(target), "dtype": name, "llama-cpp-python": version}), file=output, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(generate(request["prompts"], request["tokens"])), file=output, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
