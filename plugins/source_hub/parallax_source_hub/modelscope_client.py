"""A client of ModelScope's HTTP API."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import version
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
from huggingface_hub import get_session
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # that of its HTTP client

from parallax_core.api import ParallaxError, UnknownName, is_offline
from parallax_core.api.source import is_in_layout
from parallax_source_hub.client import PASSING, HubClient, read_range
from parallax_source_hub.download import Incoming, TransientError
from parallax_source_hub.gguf_files import is_gguf
from parallax_source_hub.partial_file import RemoteFile

MAIN = "master"
"""The branch that the hub calls ``main``."""
TIMEOUT_S = 10.0
TOKEN = "MODELSCOPE_API_TOKEN"  # noqa: S105 -- the name of a variable


class Listed(msgspec.Struct, rename="pascal"):
    """A file or folder of a repository."""

    path: str
    type: str
    size: int = 0
    sha256: str = ""


class Listing(msgspec.Struct, rename="pascal"):
    """The files of a repository; none if there is no such revision."""

    files: list[Listed] | None = None


class Envelope(msgspec.Struct, rename="pascal"):
    """An answer."""

    data: Listing | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class ModelScopeClient(HubClient):
    """A repository of ModelScope, with its files as they were listed; its ``commit`` is made of their digests.

    Files are asked for by the revision that the user named. If it moves meanwhile, their digests tell.
    """

    @classmethod
    def connect(cls, repo: str, revision: str) -> ModelScopeClient:
        """List the files of a revision.

        Raises:
            UnknownName: if there is no such repository or revision.
            ParallaxError: if ModelScope cannot be reached or refuses.
        """
        endpoint, named = find_endpoint(repo), MAIN if revision == "main" else revision
        url = f"{endpoint}/api/v1/models/{repo}/repo/files?{urlencode({'Revision': named, 'Recursive': 'true'})}"
        with asking(endpoint, repo):
            answer = get_session().get(url, headers=make_headers(), timeout=TIMEOUT_S)
            check_status(answer.status_code, repo, endpoint)
            body = answer.content
        try:
            found = msgspec.json.decode(body, type=Envelope).data
        except msgspec.MsgspecError as error:
            message = f"{endpoint} does not answer like ModelScope: {error}"
            raise ParallaxError(message, "check MODELSCOPE_ENDPOINT, and whether a proxy is in between") from error
        if found is None or found.files is None:
            raise UnknownName(f"{repo} has no revision {named!r}", f"its branches and tags are listed on {endpoint}")
        files = list_files(found.files)
        content = "".join(f"{file.name} {file.sha256}\n" for file in files)
        return cls(endpoint, repo, f"{named} {hashlib.sha256(content.encode()).hexdigest()}", files)

    @classmethod
    def return_to(cls, repo: str, commit: str, files: Sequence[RemoteFile]) -> ModelScopeClient:
        """Return a repository whose files are known, without a request."""
        return cls(find_endpoint(repo), repo, commit, files)

    @contextmanager
    def open(self, file: RemoteFile, start: int, stop: int) -> Iterator[Incoming]:
        """Open a range of a file; see `parallax_source_hub.download.Opener`."""
        query = urlencode({"Revision": self.commit.partition(" ")[0], "FilePath": file.name})
        url, headers = f"{self.endpoint}/api/v1/models/{self.repo}/repo?{query}", make_headers()
        if (start, stop) != (0, file.size):
            headers["Range"] = f"bytes={start}-{stop - 1}"
        with (
            asking(self.endpoint, self.repo),
            get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_S) as response,
        ):
            check_status(response.status_code, self.repo, self.endpoint)
            begin, size = read_range(response.status_code, response.headers)
            yield Incoming(begin, size, response.iter_bytes())


def list_files(listed: Sequence[Listed]) -> list[RemoteFile]:
    """Return the files in the layout of models, and GGUF files, sorted by name.

    Raises:
        ParallaxError: if the digest of one is not stated, without which it could not be checked.
    """
    chosen = [each for each in listed if each.type == "blob" and (is_in_layout(each.path) or is_gguf(each.path))]
    if bare := next((each.path for each in chosen if not each.sha256), ""):
        raise ParallaxError(f"ModelScope does not state the digest of {bare}", "choose another model, or another hub")
    return sorted((RemoteFile(each.path, each.size, "", each.sha256) for each in chosen), key=lambda file: file.name)


def find_endpoint(repo: str) -> str:
    """Return the address of ModelScope.

    Raises:
        ParallaxError: if it is not a web address, or the network is not to be used.
    """
    if is_offline():
        message = f"{repo} is not complete on this machine, and --offline forbids downloading it"
        raise ParallaxError(message, "leave out --offline, or use a model that is here")
    domain = os.environ.get("MODELSCOPE_DOMAIN") or "www.modelscope.cn"
    endpoint = (os.environ.get("MODELSCOPE_ENDPOINT") or f"https://{domain}").rstrip("/")
    parts = urlsplit(endpoint)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        message = f"MODELSCOPE_ENDPOINT is {endpoint!r}, which is not a web address"
        raise ParallaxError(message, "write it like https://www.modelscope.cn, or unset it")
    return endpoint


def make_headers() -> dict[str, str]:
    """Return the headers of a request, with the user's token if there is one."""
    token = os.environ.get(TOKEN, "")
    headers = {"User-Agent": f"parallax-core/{version('parallax-core')}", "Accept-Encoding": "identity"}
    return headers | ({"Authorization": f"Bearer {token}"} if token else {})


def check_status(status: int, repo: str, endpoint: str) -> None:
    """Raise the error that a status stands for."""
    if status < HTTPStatus.BAD_REQUEST:
        return
    if status == HTTPStatus.NOT_FOUND:
        raise UnknownName(f"{endpoint} has no model {repo}, or it is private", f"check the spelling, or set {TOKEN}")
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        message = f"ModelScope refuses access to {repo} (HTTP {status})"
        raise ParallaxError(message, f"set {TOKEN} to a token that may read this model, or unset a wrong one")
    kind: Any = TransientError if status in PASSING else ParallaxError
    raise kind(f"ModelScope answers HTTP {status} for {repo}", "try again in a while, or see the page of the model")


@contextmanager
def asking(endpoint: str, repo: str) -> Iterator[None]:
    """Translate errors of the network."""
    try:
        yield
    except HTTPError as error:
        message = f"cannot reach {endpoint} for {repo}: {str(error) or type(error).__name__}"
        hint = "check the network, MODELSCOPE_ENDPOINT and the proxy settings, then run it again"
        raise TransientError(message, hint) from error
