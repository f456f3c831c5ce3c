"""Checks keys, TLS and address of ``parallax serve`` before it listens, and makes its options."""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
from pathlib import Path

from parallax_core.base.errors import UsageError
from parallax_core.config.serve import ServeSettings
from parallax_core.server.api_keys import ApiKeys, KeyFile
from parallax_core.server.options import LOOPBACK_NAMES, ServerOptions

logger = logging.getLogger(__name__)

MIB = 2**20
HOUR_S = 3600.0


def make_options(settings: ServeSettings) -> ServerOptions:
    """Return the options of the HTTP server for the settings of ``serve``.

    Raises:
        UsageError: see `read_keys`.
    """
    keys = read_keys(settings.api_key_file)
    return ServerOptions(
        keys=keys,
        is_exposed=not keys.are_needed and not is_loopback(settings.host),
        hosts=choose_hosts(settings, keys),
        max_concurrent=settings.max_concurrent,
        max_per_minute=settings.max_per_minute,
        max_output_tokens=settings.max_output_tokens,
        min_priority=settings.min_priority,
        served_names=settings.served_model_name,
        adapters=settings.adapter,
        cors_origins=settings.cors_origin,
        tls_cert=settings.tls_cert,
        tls_key=settings.tls_key,
        shares_cache=settings.share_cache,
        default_timeout_s=settings.default_timeout or None,
        is_lenient=settings.lenient,
        response_store=settings.response_store,
        response_bytes=int(settings.response_store_size * MIB),
        response_ttl_s=settings.response_ttl * HOUR_S,
        keeps_billing_line=settings.keep_billing_line,
        lists_calls=settings.untrained_tools,
        logs_bodies=settings.log_prompts,
        max_body_bytes=int(settings.max_body * MIB),
        tokenizer_processes=settings.tokenizer_processes,
        request_s=settings.request_timeout,
        keep_alive_s=settings.keep_alive,
        drain_s=settings.drain,
        otlp_endpoint=settings.otlp_endpoint or "",
    )


def read_keys(path: Path | None) -> ApiKeys:
    """Return the API keys of a file, and the one of PARALLAX_API_KEY, which has the role ``admin``.

    Raises:
        UsageError: if the file cannot be read or has no key in it, or a key is invalid.
    """
    own = os.environ.get("PARALLAX_API_KEY", "").strip()
    if own and (not own.isascii() or not own.isprintable() or len(own.split()) != 1):
        message = "PARALLAX_API_KEY cannot be sent in an HTTP header"
        raise UsageError(message, "use letters, digits and punctuation of ASCII, without spaces")
    file = KeyFile(path) if path else None
    if file and path:
        logger.info("API keys read: %s", file)
        if path.stat().st_mode & 0o077:
            logger.warning("others on this machine can read the API keys: chmod 600 %s", path)
    return ApiKeys({own: "admin"} if own else {}, file)


def choose_hosts(settings: ServeSettings, keys: ApiKeys) -> frozenset[str]:
    """Return the allowed names in a request's ``Host``; empty: any.

    If keys are needed, or the server does not listen on loopback, any name is allowed unless the user names some.
    """
    is_guarded = keys.are_needed or not is_loopback(settings.host)
    if is_guarded and not settings.allowed_host:
        return frozenset()
    return frozenset({*LOOPBACK_NAMES, settings.host, *settings.allowed_host})


def check_exposure(host: str, keys: ApiKeys, *, insecure: bool) -> None:
    """Check that a server on an address other than loopback has an API key, or ``--insecure``.

    Raises:
        UsageError: if it has neither.
    """
    if keys.are_needed or is_loopback(host):
        return
    if not insecure:
        message = f"listening on {host} lets others use this server, and there is no API key"
        raise UsageError(message, "give --api-key-file or set PARALLAX_API_KEY; --insecure does without")
    powers = "use the model, see all machines, drain replicas, unload every model and have all machines fetch others"
    logger.warning("INSECURE: anyone who reaches %s is an administrator, without an API key: they can %s", host, powers)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_tls(options: ServerOptions) -> None:
    """Check the certificate and its key before a model is loaded.

    Raises:
        UsageError: if they cannot be used; it says why.
    """
    if options.tls_cert is None:
        if options.tls_key is not None:
            raise UsageError("there is a --tls-key without a --tls-cert", "give both, or neither")
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(options.tls_cert, options.tls_key, password="")
    except (OSError, ValueError) as error:
        message = f"the certificate {options.tls_cert} and its key cannot be used: {error}"
        raise UsageError(
            message, "give --tls-cert a chain and --tls-key its key, both in PEM, without a password"
        ) from error
