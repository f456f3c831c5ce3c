"""What the readers of a dialect's bodies use: schemas, chat requests, and the conversation's prompt."""

from parallax_core.contracts.engine import Pin
from parallax_core.models.chat_template import PromptEnding
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.server.body_messages import (
    BodyRequest,
    DirectAnswer,
    MoreNeeded,
    ParsedBody,
    ResponseForm,
    UnknownPart,
    pack,
)
from parallax_core.server.body_reader import BodyReader, check_lengths, write_answer
from parallax_core.server.capabilities import REASONING_SWITCHES
from parallax_core.server.chat_messages import (
    MAX_TOOLS,
    CalledFunction,
    ChatRequestMessage,
    Function,
    NamedFunction,
    NamedTool,
    Parameters,
    RequestToolCall,
    Schema,
    Tool,
    ToolChoice,
    ToolName,
)
from parallax_core.server.engine_request import parse_chat, read_chat, read_conversation, read_prompts
from parallax_core.server.fields import (
    VARIANT,
    AnyStop,
    ClientLabels,
    Copied,
    CountField,
    Identifier,
    Labels,
    ShareField,
    Strict,
    TextField,
    TokensField,
    Top,
    Variables,
    refuse,
)
from parallax_core.server.json_pieces import JsonObject, cut, to_json
from parallax_core.server.neutral_fields import Neutral, Tolerant
from parallax_core.server.request_models import ChatRequest, Sampled
from parallax_core.server.response_models import ResponseModel
from parallax_core.server.structured_output import JsonSchemaFormat, ResponseFormat, SchemaName, StructuredOutputs
from parallax_core.server.unknown_fields import IGNORED, LEFT_OUT

__all__ = [
    "IGNORED",
    "LEFT_OUT",
    "MAX_TOOLS",
    "REASONING_SWITCHES",
    "VARIANT",
    "AnyStop",
    "BodyReader",
    "BodyRequest",
    "CalledFunction",
    "ChatRequest",
    "ChatRequestMessage",
    "ClientLabels",
    "Copied",
    "CountField",
    "DirectAnswer",
    "Function",
    "Identifier",
    "JsonObject",
    "JsonSchemaFormat",
    "Labels",
    "ModelTokenizer",
    "MoreNeeded",
    "NamedFunction",
    "NamedTool",
    "Neutral",
    "Parameters",
    "ParsedBody",
    "Pin",
    "PromptEnding",
    "RequestToolCall",
    "ResponseForm",
    "ResponseFormat",
    "ResponseModel",
    "Sampled",
    "Schema",
    "SchemaName",
    "ShareField",
    "Strict",
    "StructuredOutputs",
    "TextField",
    "TokensField",
    "Tolerant",
    "Tool",
    "ToolChoice",
    "ToolName",
    "Top",
    "UnknownPart",
    "Variables",
    "check_lengths",
    "cut",
    "pack",
    "parse_chat",
    "read_chat",
    "read_conversation",
    "read_prompts",
    "refuse",
    "to_json",
    "write_answer",
]
