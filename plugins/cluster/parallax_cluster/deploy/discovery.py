"""Finds heads without their addresses, and has heads be found, by the transport that they use."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from parallax_cluster.config.home import cluster_file
from parallax_cluster.deploy.join_codes import describe_listening, find_method
from parallax_cluster.membership.discovery import index_secrets, new_question
from parallax_cluster.node.membership.code_store import CodeStore
from parallax_cluster.node.membership.head_answers import FoundHead, HeadAnswers
from parallax_core.api import HEAD, Discovery, ParallaxError, TransportSpec, is_offline
from parallax_core.api.deployment import Offer

logger = logging.getLogger(__name__)


def find_discovery(offer: Offer[TransportSpec]) -> Discovery | None:
    """Return the transport's discovery; None without one, or if this process is offline."""
    return offer.load(offer.spec.discovery)() if offer.spec.discovery is not None and not is_offline() else None


@asynccontextmanager
async def being_found(offer: Offer[TransportSpec], *addresses: str) -> AsyncIterator[None]:
    """Answer nodes that look for this process's head, with one of its codes or having joined it before.

    Args:
        offer: the transport of the head.
        addresses: at which it may listen; see `describe_listening`.
    """
    discovery, method = find_discovery(offer), find_method(offer)
    described = describe_listening(offer, *addresses)
    if discovery is None or method is None or described is None:
        yield
        return
    address = described[0]

    def look() -> FoundHead:
        head = method.describe_head(HEAD, address)
        proofs = [code.proof for code in CodeStore(cluster_file()).list_codes()]
        return FoundHead(index_secrets([method.find_key(head), *proofs]), head)

    answers = HeadAnswers(look)
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(discovery.answering(address, answers.reply))
        except ParallaxError as error:  # machines can join all the same
            logger.warning("this server is not found without its address: %s; %s", error.message, error.hint)
        stack.push_async_callback(answers.close)
        yield


async def find_heads(discovery: Discovery, secret: bytes) -> AsyncGenerator[bytes, None]:
    """Yield the description of each head on the networks of this machine that knows a secret, until it is closed.

    Raises:
        ParallaxError: if this machine is on no network.
    """
    question, seen = new_question(secret), set[bytes]()
    async with aclosing(discovery.ask(question.data)) as answers:
        async for answer in answers:
            head = question.read(answer)
            if head is not None and head not in seen:
                seen.add(head)
                yield head


async def find_head(discovery: Discovery, secret: bytes, timeout_s: float) -> bytes | None:
    """Return the description of the first head that knows a secret, or None after ``timeout_s``.

    Raises:
        ParallaxError: if this machine is on no network.
    """
    try:
        async with asyncio.timeout(timeout_s), aclosing(find_heads(discovery, secret)) as heads:
            return await anext(heads, None)
    except TimeoutError:
        return None
