"""``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

import fastapi

from parallax_core.server.intake import check_tokens
from parallax_core.server.schema import DetokenizeRequest, TokenizeRequest
from parallax_core.server.served import Served


def make_router(served: Served) -> fastapi.APIRouter:
    """Return the routes for ``served``."""
    router = fastapi.APIRouter()

    @router.post("/tokenize")
    def tokenize(body: TokenizeRequest) -> dict[str, object]:
        """Return the tokens of a prompt, or of a conversation as the chat route would see it."""
        served.check_model(body.model)
        if body.messages is not None:
            turns = [message.as_turn() for message in body.messages]
            tokens = served.text.encode_chat(turns, body.chat_template_kwargs)
        else:
            tokens = served.text.encode(body.prompt or "")
        return {"tokens": list(tokens), "count": len(tokens), "pieces": list(map(served.text.vocabulary.show, tokens))}

    @router.post("/detokenize")
    def detokenize(body: DetokenizeRequest) -> dict[str, object]:
        """Return the text of tokens, special ones included."""
        served.check_model(body.model)
        check_tokens(served.text, body.tokens, "tokens")
        return {"prompt": served.text.show(body.tokens)}

    return router
