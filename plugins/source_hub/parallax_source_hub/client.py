"""A client of the hub that translates its errors into clear ones."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import version
from urllib.parse import quote, urlsplit

import msgspec
from huggingface_hub import HfApi, constants, get_session, hf_raise_for_status
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError: that of its HTTP client
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import ModelInfo, RepoSibling
from huggingface_hub.utils import build_hf_headers, logging  # type: ignore[attr-defined]  # loaded lazily there

from parallax_core.api import ParallaxError, UnknownName, is_offline
from parallax_core.api.source import is_in_layout
from parallax_source_hub.download import Incoming, TransientError
from parallax_source_hub.gguf_files import is_gguf
from parallax_source_hub.partial_file import RemoteFile

LONGEST_WAIT_S = 60.0
"""The most seconds to wait if the server asks for a pause before the next try."""
SEARCH_S = 10.0
"""The most seconds that the hub may take to list models."""
LISTED = ("config", "downloads", "gated", "gguf", "safetensors")
"""What it says of each."""
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", re.ASCII)
PASSING = frozenset({408, 429, 500, 502, 503, 504})
"""HTTP statuses after which a retry may succeed."""


@dataclass(frozen=True, slots=True)
class HubClient:
    """A repository of the hub at one commit."""

    endpoint: str
    repo: str
    commit: str
    files: Sequence[RemoteFile]
    """The files in the layout of models, and GGUF files; see `is_in_layout`."""

    @classmethod
    def connect(cls, repo: str, revision: str) -> HubClient:
        """Look up the commit of ``revision`` and its files on the hub.

        Raises:
            UnknownName: if there is no such repository or revision.
            ParallaxError: if the hub cannot be reached or refuses.
        """
        _set_up_library()
        endpoint = _endpoint()
        with _translated(endpoint, repo, revision):
            api = HfApi(endpoint=endpoint, library_name="parallax-core", library_version=version("parallax-core"))
            try:
                info = api.model_info(
                    repo, revision=revision, files_metadata=True, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
                )
                return cls(endpoint, repo, _commit(info), _layout_files(info))
            except (ValueError, TypeError, LookupError) as error:
                message = f"{endpoint} does not answer like a hub of models: {error}"
                raise ParallaxError(
                    message, "check HF_ENDPOINT, and whether a proxy or login page is in between"
                ) from error

    @classmethod
    def return_to(cls, repo: str, commit: str, files: Sequence[RemoteFile]) -> HubClient:
        """Return a repository at a commit whose files are known, without a request.

        Raises:
            ParallaxError: if ``HF_ENDPOINT`` is not a valid address.
        """
        _set_up_library()
        return cls(_endpoint(), repo, commit, files)

    @contextmanager
    def open(self, file: RemoteFile, start: int, stop: int) -> Iterator[Incoming]:
        """Open a range of a file; see `parallax_source_hub.download.Opener`."""
        url = f"{self.endpoint}/{self.repo}/resolve/{self.commit}/{quote(file.name)}"
        headers = build_hf_headers(library_name="parallax-core", library_version=version("parallax-core"))
        headers["Accept-Encoding"] = "identity"
        if (start, stop) != (0, file.size):
            headers["Range"] = f"bytes={start}-{stop - 1}"
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with (
            _translated(self.endpoint, self.repo, self.commit),
            get_session().stream("GET", url, headers=headers, timeout=timeout) as response,
        ):
            hf_raise_for_status(response)
            begin, size = read_range(response.status_code, response.headers)
            yield Incoming(begin, size, response.iter_bytes())


class Weights(msgspec.Struct):
    """What the hub says of the weights of a model."""

    total: int | None = None
    """The number of parameters."""


class ModelConfig(msgspec.Struct):
    """What the hub says of the config.json of a model."""

    architectures: list[str] | None = None


class ListedModel(msgspec.Struct):
    """A model, as the hub lists it."""

    id: str
    downloads: int = 0
    gated: bool | str = False
    safetensors: Weights | None = None
    gguf: Weights | None = None
    config: ModelConfig | None = None


def search_hub(text: str, most: int) -> list[ListedModel]:
    """Return up to ``most`` models of the hub whose names contain ``text``, the most fetched first.

    Raises:
        ParallaxError: if the hub is not to be asked, cannot be reached, or refuses.
    """
    _set_up_library()
    if constants.HF_HUB_OFFLINE:
        hint = "leave out --offline, or unset PARALLAX_OFFLINE and HF_HUB_OFFLINE"
        raise ParallaxError("the hub is not searched, since this server is offline", hint)
    endpoint = _endpoint()
    wanted = {"search": text, "limit": str(most), "sort": "downloads", "expand": list(LISTED)}
    headers = build_hf_headers(library_name="parallax-core", library_version=version("parallax-core"))
    with _translated(endpoint, "the list of models", "main"):
        response = get_session().get(f"{endpoint}/api/models", params=wanted, headers=headers, timeout=SEARCH_S)
        hf_raise_for_status(response)
    try:
        return msgspec.json.decode(response.content, type=list[ListedModel])[:most]
    except msgspec.MsgspecError as error:
        message = f"{endpoint} does not answer like a hub of models: {error}"
        raise ParallaxError(message, "check HF_ENDPOINT, and whether a proxy or login page is in between") from error


def read_range(status: int, headers: Mapping[str, str]) -> tuple[int, int | None]:
    """Return the offset of the answer's first byte, and the size of the file if the answer states it."""
    if status == HTTPStatus.PARTIAL_CONTENT:
        stated = headers.get("Content-Range", "")
        found = _CONTENT_RANGE.fullmatch(stated)
        if not found:
            message = f"the hub answers with the range {stated!r}"
            raise ParallaxError(message, "check HF_ENDPOINT, and whether a proxy is in between")
        return int(found[1]), None if found[2] == "*" else int(found[2])
    length = headers.get("Content-Length", "")
    is_size = length.isdigit() and headers.get("Content-Encoding", "identity") == "identity"
    return 0, int(length) if is_size else None


def _set_up_library() -> None:
    """Set up the library: no warnings on the terminal, no versions of other packages in requests; maybe offline."""
    constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE or is_offline()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    constants.HF_HUB_DISABLE_TELEMETRY = True


def _endpoint() -> str:
    # Read here since the library reads it only once, on import.
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    parts = urlsplit(endpoint)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        message = f"HF_ENDPOINT is {endpoint!r}, which is not a web address"
        raise ParallaxError(message, "write it like https://huggingface.co, or unset it")
    return endpoint


def _commit(info: ModelInfo) -> str:
    if not _COMMIT.fullmatch(info.sha or ""):
        raise ValueError(f"{info.sha!r} is not a commit")
    return str(info.sha)


def _layout_files(info: ModelInfo) -> list[RemoteFile]:
    """Return the files in the layout of models, and GGUF files."""
    names = (file for file in info.siblings or () if is_in_layout(file.rfilename) or is_gguf(file.rfilename))
    return [_remote_file(file) for file in names]


def _remote_file(file: RepoSibling) -> RemoteFile:
    if file.size is None or file.blob_id is None:
        raise ValueError(f"it does not state the size and the id of {file.rfilename}")
    return RemoteFile(file.rfilename, file.size, file.blob_id, file.lfs.sha256 if file.lfs else "")


@contextmanager
def _translated(endpoint: str, repo: str, revision: str) -> Iterator[None]:
    try:
        yield
    except OfflineModeIsEnabled as error:
        message = f"{repo} is not complete on this machine, and HF_HUB_OFFLINE or --offline forbids downloading it"
        hint = "unset HF_HUB_OFFLINE and leave out --offline, or use a model that is here"
        raise ParallaxError(message, hint) from error
    except GatedRepoError as error:
        message = f"{repo} is gated: only accounts that accepted its licence may download it"
        hint = f"accept the licence on {endpoint}/{repo}, then set HF_TOKEN to a token of that account"
        raise ParallaxError(message, hint) from error
    except RepositoryNotFoundError as error:
        message = f"{endpoint} has no model {repo}, or it is private"
        raise UnknownName(message, "check the spelling; for a private model set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        message = f"{repo} has no revision {revision!r}"
        raise UnknownName(message, f"its branches and tags are listed on {endpoint}/{repo}/tree/main") from error
    except HfHubHTTPError as error:
        raise _explain_status(error, repo) from error
    except HTTPError as error:
        message = f"cannot reach {endpoint}: {str(error) or type(error).__name__}"
        raise TransientError(
            message, "check the network, HF_ENDPOINT and the proxy settings, then run it again"
        ) from error


def _explain_status(error: HfHubHTTPError, repo: str) -> ParallaxError:
    status = error.response.status_code
    if status in {401, 403}:
        message = f"the hub refuses access to {repo} (HTTP {status})"
        return ParallaxError(message, "set HF_TOKEN to a valid token that may read this model, or unset a wrong one")
    message = f"the hub answers HTTP {status} for {repo}"
    if status in PASSING:
        wait = error.response.headers.get("Retry-After", "0")
        after_s = min(float(wait), LONGEST_WAIT_S) if wait.isdigit() else 0
        return TransientError(message, "try again in a while", after_s)
    return ParallaxError(message, "try again, or see the page of the model")
