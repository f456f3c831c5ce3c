"""For the readers of a dialect's bodies: schemas, the tokenizer, and the values that they return."""

from parallax_core.contracts.engine import MAX_ANSWERS, Pin
from parallax_core.models.chat_template import ANSWER, Arguments, PromptEnding, Tools, Turns
from parallax_core.models.grammars import find_library
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.server.body_messages import (
    BodyRequest,
    DirectAnswer,
    MoreNeeded,
    ParsedBody,
    ParserTraits,
    ResponseForm,
    UnknownPart,
    pack,
    unpack,
)
from parallax_core.server.body_reader import BodyReader, check_lengths, write_answer
from parallax_core.server.capabilities import REASONING_SWITCHES, can_reason, has_setting, lists_calls
from parallax_core.server.chat_grammar import set_grammar
from parallax_core.server.fields import VARIANT, Strict, TextField, refuse
from parallax_core.server.json_pieces import JsonObject, cut, to_json
from parallax_core.server.response_models import ResponseModel
from parallax_core.server.unknown_fields import IGNORED, LEFT_OUT

__all__ = [
    "ANSWER",
    "IGNORED",
    "LEFT_OUT",
    "MAX_ANSWERS",
    "REASONING_SWITCHES",
    "VARIANT",
    "Arguments",
    "BodyReader",
    "BodyRequest",
    "DirectAnswer",
    "JsonObject",
    "ModelTokenizer",
    "MoreNeeded",
    "ParsedBody",
    "ParserTraits",
    "Pin",
    "PromptEnding",
    "ResponseForm",
    "ResponseModel",
    "Strict",
    "TextField",
    "Tools",
    "Turns",
    "UnknownPart",
    "can_reason",
    "check_lengths",
    "cut",
    "find_library",
    "has_setting",
    "lists_calls",
    "pack",
    "refuse",
    "set_grammar",
    "to_json",
    "unpack",
    "write_answer",
]
