"""Turns a validated body of Anthropic's Messages API into an engine request, as that of a chat request."""

from __future__ import annotations

import msgspec

from parallax_core.base.errors import InvalidRequest
from parallax_core.models.chat_template import PromptEnding
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.server.body_messages import BodyRequest, ParsedBody
from parallax_core.server.engine_request import parse_chat, read_conversation
from parallax_core.server.message_models import CountTokensRequest, MessagesRequest
from parallax_core.server.request_models import ChatRequest


def read_messages(text: ModelTokenizer, body: MessagesRequest, ask: BodyRequest) -> ParsedBody:
    """Return the parsed body of a request for a message.

    Raises:
        InvalidRequest: if it cannot be served; it names the field.
    """
    prompt = encode_messages(text, body, ask)
    room = max(1, ask.max_length - len(prompt)) if ask.max_length else body.max_tokens
    chat = ChatRequest.model_construct(
        model=body.model,
        max_tokens=min(body.max_tokens, room),
        stop=body.stop_sequences,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stream=body.stream,
    )
    reading = parse_chat(text, chat, prompt)
    form = msgspec.structs.replace(reading.form, fills_context=room < body.max_tokens)
    return msgspec.structs.replace(reading, form=form)


def encode_messages(text: ModelTokenizer, body: CountTokensRequest, ask: BodyRequest) -> tuple[int, ...]:
    """Return the prompt for a conversation.

    Raises:
        InvalidRequest: if it cannot be served; it names the field.
    """
    chat = ChatRequest.model_construct(messages=body.list_messages(keeps_billing_line=ask.keeps_billing_line))
    ending = PromptEnding(opens_answer=not body.continues_last, continues_last=body.continues_last)
    try:
        return read_conversation(text, chat, None, ending)
    except InvalidRequest as error:
        if error.param != "continue_final_message":
            raise
        raise InvalidRequest(error.message, "messages", "end them with a turn of the role 'user'") from error
