"""Chooses a model's files in a repository: config, tokenizer, one set of safetensors; no code."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from parallax_core.api import ParallaxError
from parallax_core.api.source import CONFIG, INDEX, POOLING, SINGLE, TOKENIZER, find_tokenizer, hint_for, read_shards
from parallax_source_hub.gguf_files import hint_at_kinds, list_kinds
from parallax_source_hub.partial_file import RemoteFile

SMALL = (
    CONFIG,
    "generation_config.json",
    TOKENIZER,
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.json",
    "*.jinja",
    "modules.json",
    POOLING,
)
DUPLICATES = ("consolidated*", "adapter_*")
"""Weight files that duplicate the model's own, or are not a model by themselves."""
NO_MODEL = "choose a model in the layout of transformers, with config.json, tokenizer.json and *.safetensors"


def choose_files(name: str, listing: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Return everything but the weights: the files matching `SMALL`, and the index of the weights if needed.

    Of a model without tokenizer.json, the file is among them that can be converted.

    Args:
        name: the model, for messages.
        listing: the files in the layout of models; other folders hold other formats or copies of the weights.

    Raises:
        ParallaxError: if the repository has no safetensors, configuration or tokenizer.
    """
    root = {file.name: file for file in listing}
    tokenizer = find_tokenizer(root)
    missing = [needed for needed, is_there in ((CONFIG, CONFIG in root), (TOKENIZER, tokenizer)) if not is_there]
    if not any(_is_weights(file) for file in listing):
        missing.append("*.safetensors")
    if missing:
        message = f"{name} cannot be served: its repository has no {' and no '.join(missing)}"
        others = [file for file in root if not file.endswith(".safetensors")]
        if missing[-1] == "*.safetensors" and (kinds := list_kinds(listing)):
            raise ParallaxError(message, hint_at_kinds(name, kinds))
        raise ParallaxError(message, hint_for(others) if missing[-1] == "*.safetensors" else NO_MODEL)
    patterns = (*SMALL, tokenizer or TOKENIZER)
    chosen = [file for file in listing if any(fnmatchcase(file.name, pattern) for pattern in patterns)]
    return chosen if SINGLE in root or INDEX not in root else [*chosen, root[INDEX]]


def choose_candidates(name: str, listing: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Return the files of `choose_files`, and all files from which `choose_weights` may choose.

    Raises:
        ParallaxError: see `choose_files`.
    """
    weights = [file for file in listing if _is_weights(file)]
    single = [file for file in weights if file.name == SINGLE]
    return [*choose_files(name, listing), *(single or weights)]


def choose_weights(name: str, listing: Sequence[RemoteFile], folder: Path) -> list[RemoteFile]:
    """Return one complete set of weights: the single file, else the shards of the index in ``folder``, else all.

    Raises:
        ParallaxError: if the index is damaged, or names shards that are not in the repository.
    """
    root = {file.name: file for file in listing}
    if SINGLE in root:
        return [root[SINGLE]]
    if INDEX not in root:
        return [file for file in listing if _is_weights(file)]
    shards = read_shards(folder)
    if missing := [shard for shard in shards if shard not in root]:
        message = f"{name} is incomplete on the hub: {', '.join(missing)} missing"
        raise ParallaxError(message, "try another revision, hf:ORG/NAME@REVISION, or report it to its publisher")
    return [root[shard] for shard in shards]


def weigh_formats(listing: Sequence[RemoteFile]) -> dict[str, int]:
    """Return the bytes of the weights of each format: by the quantisation in GGUF, and of safetensors by ``""``."""
    found = {kind: sum(file.size for file in files) for kind, files in list_kinds(listing).items()}
    weights = [file for file in listing if _is_weights(file)]
    if size := sum(file.size for file in [each for each in weights if each.name == SINGLE] or weights):
        found[""] = size
    return found


def _is_weights(file: RemoteFile) -> bool:
    return file.name.endswith(".safetensors") and not any(fnmatchcase(file.name, dup) for dup in DUPLICATES)
