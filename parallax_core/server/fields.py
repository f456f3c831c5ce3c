"""Types and checks that the fields of several requests share."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from parallax_core.server.unknown_fields import drop_unknown

VARIANT = "variant-"
"""The beginning of the names of a union's variants, which are no part of a field's path."""
TOGETHER = "together"
"""The type of an error about several fields."""


class Strict(BaseModel):
    """A model without unknown fields and without conversions: ``"1"`` is not a number."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True, allow_inf_nan=False)

    place: ClassVar[str] = ""
    """Its path in the body: field names, each followed by a dot."""

    @model_validator(mode="before")
    @classmethod
    def drop_unknown_fields(cls, body: Any) -> Any:  # noqa: ANN401 -- whatever the client sent
        """See `drop_unknown`."""
        return drop_unknown(body, cls.list_known(), cls.place) if isinstance(body, dict) else body

    @classmethod
    def list_known(cls) -> Collection[str]:
        """Return the names of the known fields."""
        return cls.model_fields.keys()


def refuse(param: str, message: str) -> PydanticCustomError:
    """Return the error of a field that contradicts others; Pydantic itself names the field of other errors.

    ``param`` is its path within the object that is checked.
    """
    return PydanticCustomError(TOGETHER, "{message}", {"message": message, "param": param})


def _check_text(text: str) -> str:
    """Refuse unpaired surrogates, which JSON can encode and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"not valid Unicode: {error.reason} at character {error.start}"
        raise ValueError(message) from error
    return text


TextField = Annotated[str, AfterValidator(_check_text)]
