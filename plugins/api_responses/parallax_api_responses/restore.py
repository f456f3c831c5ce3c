"""Goes on with the responses that a server before this one had begun, and had not ended."""

from __future__ import annotations

import asyncio
import logging

from parallax_api_responses.begun import BegunResponse
from parallax_api_responses.keeper import ResponseKeeper
from parallax_api_responses.route import make_writer
from parallax_core.api import ParallaxError
from parallax_core.api.dialect import ResponseFlow, ServedModels, Service

LOOK_S = 0.5
"""Seconds between two looks whether a model is there."""

logger = logging.getLogger(__name__)


async def restore_begun(models: ServedModels, keeper: ResponseKeeper) -> None:
    """Go on with each response once its model is there; leave those that run to the next server when this one ends."""
    try:
        while keeper.begun:
            for begun in list(keeper.begun.values()):
                if service := _find_service(models, begun.model):
                    await _restore(begun, service, keeper)
            await asyncio.sleep(LOOK_S)
        await asyncio.Event().wait()
    finally:
        keeper.suspend()


def _find_service(models: ServedModels, model: str) -> Service | None:
    for known in models.all:
        if known.id == model and known.hosted is not None:
            return known.hosted.service
    return None


async def _restore(begun: BegunResponse, service: Service, keeper: ResponseKeeper) -> None:
    async def submit(tokens: tuple[int, ...]) -> ResponseFlow:
        return await service.resume(begun.reading, begun.id, tokens)

    try:
        writer = make_writer(service, begun.reading, begun.id, begun.created_at)
        await keeper.restore(begun, writer, submit)
    except ParallaxError as error:
        logger.warning("a response cannot go on id=%s: %s", begun.id, error.message)
        keeper.begun.pop((begun.owner, begun.id), None)
    else:
        logger.info("response goes on id=%s", begun.id)
