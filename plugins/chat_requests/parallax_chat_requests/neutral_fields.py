"""Accepts unsupported fields whose values have no effect, and refuses those with others by name."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from pydantic import ConfigDict, model_validator

from parallax_core.api.bodies import Strict, refuse

Neutral = dict[str, tuple[object, ...]]
"""Unsupported fields, with the values that are accepted because they, like null, have no effect."""


def _describe_neutral(schema: dict[str, Any], model: type[Tolerant]) -> None:
    """Describe the accepted values of each field that is not supported yet."""
    for name, values in model.neutral.items():
        text = "Not supported yet; these values have no effect."
        schema["properties"][name] = {"enum": [None, *values], "description": text}


def _spell(value: object) -> str:
    """Return a value as JSON has it, with the quotes that errors have."""
    return repr(value) if isinstance(value, str) else json.dumps(value)


class Tolerant(Strict):
    """A body that may have unsupported fields with values that have no effect."""

    model_config = ConfigDict(json_schema_extra=_describe_neutral)

    neutral: ClassVar[Neutral] = {}

    @model_validator(mode="before")
    @classmethod
    def drop_neutral_fields(cls, body: Any) -> Any:  # noqa: ANN401 -- whatever the client sent
        """Drop unsupported fields whose values have no effect, and refuse those with others."""
        unsupported = cls.neutral.keys() & body.keys() if isinstance(body, dict) else ()
        for name in sorted(unsupported):
            if not cls._asks_nothing(name, body[name]):
                values = " or ".join(map(_spell, cls.neutral[name]))
                advice = "leave it out" + (f" or send {values}" if values else "")
                raise refuse(name, f"'{name}' is not supported yet; {advice}")
        return {name: value for name, value in body.items() if name not in unsupported} if unsupported else body

    @classmethod
    def _asks_nothing(cls, name: str, value: object) -> bool:
        same_kind = (neutral for neutral in cls.neutral[name] if isinstance(neutral, bool) == isinstance(value, bool))
        return value is None or value in same_kind
