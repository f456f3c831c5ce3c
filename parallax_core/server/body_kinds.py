"""Reads the bodies of core's own dialects; see `BodySpec.read`."""

from __future__ import annotations

from functools import partial

from parallax_core.models.chat_template import PromptEnding
from parallax_core.server.body_messages import BodyRequest, DirectAnswer, ParsedBody
from parallax_core.server.body_reader import BodyReader, check_lengths
from parallax_core.server.capabilities import lists_calls
from parallax_core.server.described_tools import describe_tools, encode_described, write_calls
from parallax_core.server.engine_request import check_tokens, read_chat, read_completion
from parallax_core.server.json_pieces import to_json
from parallax_core.server.request_models import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from parallax_core.server.response_models import TextReply, TokensReply


def read_chat_body(reader: BodyReader, body: ChatRequest, ask: BodyRequest) -> ParsedBody:
    """Read a conversation."""
    return check_lengths(read_chat(reader.text, body, reader.parser), ask, "messages", "shorten the conversation")


def read_completion_body(reader: BodyReader, body: CompletionRequest, ask: BodyRequest) -> ParsedBody:
    """Read one prompt or several."""
    return check_lengths(read_completion(reader.text, body), ask, "prompt", "shorten it")


def tokenize(reader: BodyReader, body: TokenizeRequest, ask: BodyRequest) -> DirectAnswer:
    """Return the tokens of a prompt, or of a conversation."""
    text = reader.text
    if body.messages is None:
        special = body.add_special_tokens is not False
        tokens = text.encode(body.prompt or "", special=special)
    else:
        turns = [message.as_turn() for message in body.messages]
        continues = bool(body.continue_final_message)
        opens = not continues if body.add_generation_prompt is None else body.add_generation_prompt
        ending = PromptEnding(opens_answer=opens, continues_last=continues)
        special = bool(body.add_special_tokens)
        tools = [tool.as_template_value() for tool in body.tools or ()]
        encode = partial(text.encode_chat, settings=body.chat_template_kwargs, ending=ending, special=special)
        as_list = lists_calls(text, reader.parser)
        if tools and (as_list or not text.takes_tools):
            tokens = encode_described(turns, describe_tools(tools, None, as_list=as_list), encode)
        else:
            tokens = encode(turns if text.takes_tools else write_calls(turns), tools=tools)
    pieces = list(map(text.vocabulary.find_piece, tokens)) if body.return_token_strs else None
    most = ask.max_length or text.context_length
    return DirectAnswer(to_json(TokensReply(len(tokens), most, list(tokens), pieces)))


def detokenize(reader: BodyReader, body: DetokenizeRequest, ask: BodyRequest) -> DirectAnswer:
    """Return the text of tokens."""
    del ask
    check_tokens(reader.text, body.tokens, "tokens")
    return DirectAnswer(to_json(TextReply(reader.text.show(body.tokens))))
