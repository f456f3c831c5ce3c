"""What answers the requests of an API dialect: models, answers, events and descriptions."""

from parallax_core.base.disk import FaultLog, is_full
from parallax_core.base.errors import Overloaded
from parallax_core.contracts.meter import RequestMeter, ServerMeter
from parallax_core.contracts.status import ModelState
from parallax_core.engine.detokenizer import Detokenizer
from parallax_core.models.output_parser import OutputParser
from parallax_core.node.pipeline.unread import UnreadOutput
from parallax_core.server.answer_parsing import AnswerParsing, continues, make_call_id, read_text
from parallax_core.server.error_body import TYPES as ERROR_TYPES
from parallax_core.server.error_body import error_body
from parallax_core.server.error_forms import find_request_id
from parallax_core.server.errors import error_response
from parallax_core.server.floats import read_floats
from parallax_core.server.hosting import HostedModel
from parallax_core.server.json_pieces import HOLE, as_json, join_pieces, write_list, write_lists, write_object
from parallax_core.server.json_response import respond, respond_with
from parallax_core.server.logprobs import TokenWriter, write_numbers
from parallax_core.server.methods import has_path
from parallax_core.server.model_errors import ChangeRefused, explain
from parallax_core.server.openapi import (
    describe_answer,
    describe_body,
    describe_errors,
    describe_event_stream,
    describe_events,
    describe_named_events,
    describe_server,
)
from parallax_core.server.options import ServerOptions
from parallax_core.server.response import ResponseFlow, SseResponse, TokenCounts, WholeResponse, answer_whole
from parallax_core.server.response_models import ModelReply, ResponseModel
from parallax_core.server.served_adapters import ServedAdapter
from parallax_core.server.served_models import ModelEntry, ServedModels, describe_model, list_ids
from parallax_core.server.service import Service
from parallax_core.server.sse import write_named
from parallax_core.server.strict_json import read_body

__all__ = [
    "ERROR_TYPES",
    "HOLE",
    "AnswerParsing",
    "ChangeRefused",
    "Detokenizer",
    "FaultLog",
    "HostedModel",
    "ModelEntry",
    "ModelReply",
    "ModelState",
    "OutputParser",
    "Overloaded",
    "RequestMeter",
    "ResponseFlow",
    "ResponseModel",
    "ServedAdapter",
    "ServedModels",
    "ServerMeter",
    "ServerOptions",
    "Service",
    "SseResponse",
    "TokenCounts",
    "TokenWriter",
    "UnreadOutput",
    "WholeResponse",
    "answer_whole",
    "as_json",
    "continues",
    "describe_answer",
    "describe_body",
    "describe_errors",
    "describe_event_stream",
    "describe_events",
    "describe_model",
    "describe_named_events",
    "describe_server",
    "error_body",
    "error_response",
    "explain",
    "find_request_id",
    "has_path",
    "is_full",
    "join_pieces",
    "list_ids",
    "make_call_id",
    "read_body",
    "read_floats",
    "read_text",
    "respond",
    "respond_with",
    "write_list",
    "write_lists",
    "write_named",
    "write_numbers",
    "write_object",
]
