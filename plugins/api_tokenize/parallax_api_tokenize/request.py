"""Reads the bodies of the tokenizer's routes, and writes their answers."""

from __future__ import annotations

from functools import partial

from parallax_api_tokenize.body_models import DetokenizeRequest, TextReply, TokenizeRequest, TokensReply
from parallax_chat_requests.engine_request import check_tokens, encode_turns
from parallax_core.api.bodies import BodyReader, BodyRequest, DirectAnswer, PromptEnding, to_json


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
        tokens = encode_turns(text, (turns, tools), encode, reader.parser)
    pieces = list(map(text.vocabulary.find_piece, tokens)) if body.return_token_strs else None
    most = ask.max_length or text.context_length
    return DirectAnswer(to_json(TokensReply(len(tokens), most, list(tokens), pieces)))


def detokenize(reader: BodyReader, body: DetokenizeRequest, ask: BodyRequest) -> DirectAnswer:
    """Return the text of tokens."""
    del ask
    check_tokens(reader.text, body.tokens, "tokens")
    return DirectAnswer(to_json(TextReply(reader.text.show(body.tokens))))
