"""``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

import fastapi
from fastapi.responses import JSONResponse

from parallax_core.server.body import JsonRoute
from parallax_core.server.description import describe_errors
from parallax_core.server.intake import check_tokens
from parallax_core.server.reply import TextReply, TokensReply
from parallax_core.server.schema import DetokenizeRequest, TokenizeRequest
from parallax_core.server.served import Served


def make_router(served: Served) -> fastapi.APIRouter:
    """Return the routes for ``served``."""
    router, errors = fastapi.APIRouter(route_class=JsonRoute), describe_errors(400, 401, 403, 404, 408, 413, 429, 503)

    @router.post("/tokenize", response_model=TokensReply, responses=errors)
    def tokenize(body: TokenizeRequest) -> JSONResponse:
        """Return the tokens of a prompt, or of a conversation as the chat route would see it."""
        served.check_model(body.model)
        if body.messages is not None:
            turns = [message.as_turn() for message in body.messages]
            tokens = served.text.encode_chat(turns, body.chat_template_kwargs)
        else:
            tokens = served.text.encode(body.prompt or "")
        pieces = list(map(served.text.vocabulary.show, tokens))
        return JSONResponse({"tokens": list(tokens), "count": len(tokens), "pieces": pieces})

    @router.post("/detokenize", response_model=TextReply, responses=errors)
    def detokenize(body: DetokenizeRequest) -> JSONResponse:
        """Return the text of tokens, special ones included."""
        served.check_model(body.model)
        check_tokens(served.text, body.tokens, "tokens")
        return JSONResponse({"prompt": served.text.show(body.tokens)})

    return router
