"""A model hub on loopback, with the parts of the real hub's HTTP API, and of ModelScope's, that downloads use.

It has faults on demand.

Large files (safetensors) are redirected to a second address, as the real hub redirects to its storage.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

CHUNK = 16384


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request the hub received."""

    path: str
    headers: Mapping[str, str]


@dataclass(slots=True)
class Fault:
    """A fault in the next ``times`` responses to requests whose path ends with ``ending``."""

    ending: str
    status: int = 0
    """Answer with this HTTP status instead, unless 0."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers of that answer."""
    cut_after: int | None = None
    """Announce the whole content, send this number of bytes, then drop the connection."""
    corrupt: bool = False
    """Send wrong bytes of the right length."""
    pause_s: float = 0
    """Seconds to wait between chunks of 16 KiB."""
    ignore_range: bool = False
    stated_size: str = ""
    """The size of the file that the answer to a range states, if it is not the right one."""
    times: int = 1


@dataclass(slots=True)
class Repo:
    """The commits of a repository; a commit is its files by path."""

    commits: dict[str, Mapping[str, bytes]]
    branches: dict[str, str]
    token: str = ""
    """If set, the token needed to download contents."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Wrong sizes for the listing to claim, in bytes, by path."""


class FakeHub:
    """The hub; a context manager that serves while entered. ``endpoint`` is the value for ``HF_ENDPOINT``."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults: list[Fault] = []
        self.requests: list[RecordedRequest] = []
        self.num_sent = 0
        """Bytes of contents sent to clients."""
        self._servers: list[ThreadingHTTPServer] = []

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"hub": self})
        for _ in range(2):
            server = _Server(("127.0.0.1", 0), handler)
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
            self._servers.append(server)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop serving; may be called twice."""
        while self._servers:
            server = self._servers.pop()
            server.shutdown()
            server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._servers[0].server_port}"

    @property
    def storage(self) -> str:
        """The address that serves large files."""
        return f"http://127.0.0.1:{self._servers[1].server_port}"

    def add(self, name: str, files: Mapping[str, bytes], branch: str = "main", token: str = "") -> str:
        """Add a commit to a repository and return its id."""
        content = b"".join(key.encode() + files[key] for key in sorted(files))
        commit = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        repo = self.repos.setdefault(name, Repo({}, {}, token))
        repo.commits[commit] = dict(files)
        repo.branches[branch] = commit
        return commit

    def fetched(self) -> list[str]:
        """Return the names of the requested files, in order."""
        return [request.path.rpartition("/")[2] for request in self.requests if "/resolve/" in request.path]

    def storage_requests(self) -> Sequence[RecordedRequest]:
        """Return the requests for contents of large files."""
        return [request for request in self.requests if request.path.startswith("/storage/")]


@cache  # it takes a while for large files
def find_digest(content: bytes) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(content).hexdigest()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: clients of these tests hang up on purpose."""


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(RecordedRequest(path, {key.lower(): value for key, value in self.headers.items()}))
        fault = self._take_fault(path)
        if fault.status:
            self._answer(fault.status, b'{"error": "as ordered"}', fault.headers)
        elif path.startswith("/storage/"):
            self._send_content(self._find_blob(path.split("/")[2]), fault)
        elif path == "/api/models":
            self._send_found(parse_qs(urlsplit(self.path).query))
        elif path.startswith("/api/v1/models/"):
            name, _, what = path.removeprefix("/api/v1/models/").partition("/repo")
            self._answer_as_modelscope(name, what, fault)
        elif path.startswith("/api/models/"):
            self._send_listing(path.removeprefix("/api/models/"))
        elif "/resolve/" in path:
            self._resolve(path, fault)
        else:
            self._answer(404, b"{}", {})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        """Log nothing."""

    def _take_fault(self, path: str) -> Fault:
        for fault in self.hub.faults:
            if path.endswith(fault.ending):
                fault.times -= 1
                if not fault.times:
                    self.hub.faults.remove(fault)
                return fault
        return Fault("")

    def _send_found(self, query: Mapping[str, Sequence[str]]) -> None:
        wanted, most = query["search"][0].lower(), int(query["limit"][0])
        names = [name for name in self.hub.repos if wanted in name.lower()]
        found = [_summarize(name, self.hub.repos[name]) for name in names]
        self._answer(200, json.dumps(found[:most]).encode(), {})

    def _send_listing(self, rest: str) -> None:
        name, _, revision = rest.partition("/revision/")
        repo = self.hub.repos.get(name)
        if repo is None:
            return self._answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        commit = repo.branches.get(revision, revision)
        if commit not in repo.commits:
            return self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        siblings = [_describe(repo, path, content) for path, content in repo.commits[commit].items()]
        body = {"id": name, "modelId": name, "sha": commit, "siblings": siblings, "tags": [], "downloads": 0}
        remark = {"X-HF-Warning": "fake; remarks of the hub are for its own clients"}
        return self._answer(200, json.dumps(body).encode(), {"X-Repo-Commit": commit, **remark})

    def _resolve(self, path: str, fault: Fault) -> None:
        name, _, rest = path[1:].partition("/resolve/")
        commit, _, file = rest.partition("/")
        repo = self.hub.repos[name]
        if repo.token and self.headers["Authorization"] != f"Bearer {repo.token}":
            return self._answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        if commit not in repo.commits:
            return self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        content = repo.commits[commit].get(file)
        if content is None:
            return self._answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        if not _is_large(file):
            return self._send_content(content, fault)
        sha256 = find_digest(content)
        linked = {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(content)), "X-Repo-Commit": commit}
        return self._answer(302, b"", {"Location": f"{self.hub.storage}/storage/{sha256}/{file}", **linked})

    def _answer_as_modelscope(self, name: str, what: str, fault: Fault) -> None:
        """Answer as ModelScope, which says of a revision that there is not, that it has no files."""
        query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        repo, revision = self.hub.repos.get(name), query["Revision"]
        if repo is None or (repo.token and self.headers["Authorization"] != f"Bearer {repo.token}"):
            return self._answer(404 if repo is None else 403, b'{"Code": 10010205001, "Data": null}', {})
        files = repo.commits.get(repo.branches.get("main" if revision == "master" else revision, revision))
        if what:
            listed = None if files is None else [_list_as_modelscope(*each) for each in files.items()]
            return self._answer(200, json.dumps({"Code": 200, "Data": {"Files": listed}, "Message": ""}).encode(), {})
        path = query["FilePath"]
        if files is None or path not in files:
            return self._answer(404, b"{}", {})
        if not _is_large(path):
            return self._send_content(files[path], fault)
        return self._answer(
            302, b"", {"Location": f"{self.hub.storage}/storage/{find_digest(files[path])}/{quote(path)}"}
        )

    def _find_blob(self, sha256: str) -> bytes:
        contents = [c for repo in self.hub.repos.values() for files in repo.commits.values() for c in files.values()]
        return next(content for content in contents if find_digest(content) == sha256)

    def _send_content(self, content: bytes, fault: Fault) -> None:
        if fault.corrupt:
            content = bytes(byte ^ 1 for byte in content)
        wanted = "" if fault.ignore_range else self.headers.get("Range", "")
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first or 0), min(int(last or len(content)), len(content) - 1)
        ranges = {"Content-Range": f"bytes {start}-{end}/{fault.stated_size or len(content)}"} if wanted else {}
        self.send_response(206 if wanted else 200)
        for key, value in {**ranges, "Content-Length": str(end + 1 - start), "ETag": '"e"'}.items():
            self.send_header(key, value)
        self.end_headers()
        stop = end + 1 if fault.cut_after is None else min(end + 1, start + fault.cut_after)
        for at in range(start, stop, CHUNK):
            self.wfile.write(content[at : min(at + CHUNK, stop)])
            self.hub.num_sent += min(CHUNK, stop - at)
            time.sleep(fault.pause_s)
        self.close_connection = self.close_connection or stop <= end

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)


def _summarize(name: str, repo: Repo) -> dict[str, Any]:
    """Return what a list says of a model that has one of each `HubSource.search` asks for."""
    files = repo.commits[repo.branches["main"]]
    config = json.loads(files.get("config.json", b"{}"))
    kinds = {"safetensors": ".safetensors", "gguf": ".gguf"}
    there = {kind: {"total": 1000} for kind, ending in kinds.items() if any(each.endswith(ending) for each in files)}
    named = {"config": {"architectures": config["architectures"]}} if "architectures" in config else {}
    return {"_id": "1", "id": name, "downloads": 7, "gated": "manual" if repo.token else False, **there, **named}


def _list_as_modelscope(path: str, content: bytes) -> dict[str, Any]:
    name, size, digest = path.rpartition("/")[2], len(content), find_digest(content)
    return {"Path": path, "Name": name, "Type": "blob", "Size": size, "Sha256": digest, "Revision": "0" * 40}


def _is_large(path: str) -> bool:
    return path.endswith((".safetensors", ".bin", ".gguf"))


def _describe(repo: Repo, path: str, content: bytes) -> dict[str, Any]:
    size = repo.sizes.get(path, len(content))
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    entry: dict[str, Any] = {"rfilename": path, "size": size, "blobId": blob}
    if _is_large(path):
        entry["lfs"] = {"size": size, "sha256": find_digest(content), "pointerSize": 134}
    return entry
