"""Reads the authors' defaults for requests from ``generation_config.json``.

The supported fields and their meaning are those of vLLM (https://docs.vllm.ai, ``--generation-config``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from parallax_core.base.errors import ParallaxError, UsageError
from parallax_core.base.files import read_object
from parallax_core.contracts.sample import Sampling
from parallax_core.contracts.value import LARGEST, Positive, Weight

FILE = "generation_config.json"
EOS = "eos_token_id"
AUTO, OFF = "auto", frozenset({"off", "vllm"})
"""The values of ``generation_config`` besides a path: the model's own file, or no file."""


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """The supported fields; others are ignored, and null means that a field is not set."""

    temperature: Weight | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=LARGEST)] | None = None
    """0 and -1 keep all tokens."""
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """0 keeps only the most probable token."""
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, msgspec.Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, msgspec.Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Positive | None = None
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)] | None = None


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """The values of fields that a request leaves out; without arguments, the defaults of OpenAI's API."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    """The largest number of tokens of a chat's answer; None: limited by the context only."""

    def describe(self) -> dict[str, float]:
        """Return the values that differ from OpenAI's defaults, by the request's field names."""
        stated = {name: getattr(self.sampling, name) for name in self.sampling.__struct_fields__}
        neutral = Sampling()
        found = {name: value for name, value in stated.items() if value != getattr(neutral, name)}
        return found if self.max_tokens is None else {**found, "max_tokens": self.max_tokens}


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """The recommended defaults for a model, and the tokens that end its texts."""

    defaults: RequestDefaults
    eos_token_id: object = None
    """A token id or a list of them; None: not stated."""


def read_generation(folder: Path, choice: str = AUTO) -> GenerationConfig:
    """Return the recommendations for the model in ``folder``.

    Args:
        folder: a model folder; the file may be missing.
        choice: ``auto`` takes the file in ``folder``; ``off`` takes OpenAI's defaults; anything else is the path of
            another such file, or of a folder with one. Unless that file names the end tokens, those of the model's own
            file hold in all cases.

    Raises:
        UsageError: if there is no file at the path.
        ParallaxError: if the file is damaged or a value is out of range; it names the field.
    """
    path = folder / FILE
    own = read_object(path) if path.exists() else {}
    if choice in OFF:
        return GenerationConfig(RequestDefaults(), own.get(EOS))
    if choice == AUTO:
        return GenerationConfig(_read_defaults(path, own), own.get(EOS))
    path = _find_file(choice)
    chosen = read_object(path)
    return GenerationConfig(_read_defaults(path, chosen), chosen.get(EOS, own.get(EOS)))


def check_choice(choice: str) -> None:
    """Check ``choice`` before the model is there; see `read_generation`.

    Raises:
        UsageError: if there is no file at the path.
    """
    if choice != AUTO and choice not in OFF:
        _find_file(choice)


def _find_file(choice: str) -> Path:
    path = Path(choice).expanduser()
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        message = f"there is no file {path}"
        raise UsageError(message, f"generation_config is auto, off, or the path of a {FILE} or of its folder")
    return path


def _read_defaults(path: Path, config: Mapping[str, Any]) -> RequestDefaults:
    try:
        stated = msgspec.convert(config, Recommendation)
    except msgspec.ValidationError as error:
        message = f"{path} cannot be used: {error}"
        raise ParallaxError(message, "correct it, or serve with --set generation_config=off") from error
    values = {name: value for name in stated.__struct_fields__ if (value := getattr(stated, name)) is not None}
    max_tokens = values.pop("max_new_tokens", None)
    if values.get("top_k") == -1:
        values["top_k"] = 0
    if values.get("top_p") == 0:
        values |= {"top_p": 1.0, "top_k": 1}
    return RequestDefaults(Sampling(**values), max_tokens)
