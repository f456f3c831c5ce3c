"""Types of fields that several requests share."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from parallax_core.api.bodies import MAX_ANSWERS, TextField

MAX_SEED = 2**63 - 1
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_TOP = 20
MAX_TOKEN = 2**31 - 1
MAX_BIASES = 1024
MAX_LABELS = 16
MAX_LABEL_NAME, MAX_LABEL = 64, 512
"""The most characters of the name and of the value of a label in OpenAI's API."""
MAX_IDENTIFIER = 128
"""The most characters of a ``safety_identifier`` in OpenAI's API."""
MAX_VARIABLES = 256


def _check_token(text: str) -> str:
    if not text.isdecimal() or not text.isascii() or int(text[:11]) > MAX_TOKEN or str(int(text)) != text:
        raise ValueError("a key is not the number of a token")
    return text


def check_variables(variables: dict[str, Any]) -> dict[str, Any]:
    """Refuse values that cannot be rendered: with unpaired surrogates, or nested too deeply."""
    try:
        msgspec.json.encode(variables)
    except (UnicodeEncodeError, RecursionError) as error:
        raise ValueError("not valid Unicode, or too deep") from error
    return variables


def _limit(most: int) -> BeforeValidator:
    """Refuse an object with too many fields before checking any of them."""

    def check(value: object) -> object:
        if isinstance(value, dict) and len(value) > most:
            message = "Dictionary should have at most {most} items, not {num}"
            raise PydanticCustomError("too_long", message, {"most": most, "num": len(value)})
        return value

    return BeforeValidator(check)


Variables = Annotated[
    dict[TextField, Any], Field(max_length=MAX_VARIABLES), _limit(MAX_VARIABLES), AfterValidator(check_variables)
]
Label = Annotated[TextField, Field(max_length=MAX_LABEL)]
Labels = Annotated[
    dict[Annotated[TextField, Field(max_length=MAX_LABEL_NAME)], Label],
    Field(max_length=MAX_LABELS),
    _limit(MAX_LABELS),
]
ClientLabels = Annotated[dict[TextField, TextField], Field(max_length=MAX_LABELS), _limit(MAX_LABELS)]
"""Labels of any length, as some clients send besides."""
Identifier = Annotated[TextField, Field(max_length=MAX_IDENTIFIER)]
AnyStop = Annotated[TextField, Field(max_length=MAX_STOP_CHARACTERS)]
Stops = AnyStop | Annotated[list[AnyStop], Field(max_length=MAX_STOPS)]
"""An empty one has no effect."""
Token = Annotated[int, Field(ge=0, le=MAX_TOKEN)]
TokensField = Annotated[list[Token], Field(min_length=1, fail_fast=True)]
"""Validation stops at the first invalid token, since there may be a million more."""
CountField = Annotated[int, Field(ge=1, le=2**31 - 1)]
SeedField = Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED)]
BiasField = Annotated[float, Field(ge=-100, le=100)]
Biases = Annotated[
    dict[Annotated[str, AfterValidator(_check_token)], BiasField], Field(max_length=MAX_BIASES), _limit(MAX_BIASES)
]
Copied = Annotated[Any, Field(exclude=True)]
"""A field that a client's own library adds to our answers, such as the parsed form of a text, with no effect here."""
Penalty = Annotated[float, Field(ge=-2, le=2)]
ShareField = Annotated[float, Field(ge=0, le=1)]
Answers = Annotated[int, Field(ge=1, le=MAX_ANSWERS)]
Top = Annotated[int, Field(ge=0, le=MAX_TOP)]
