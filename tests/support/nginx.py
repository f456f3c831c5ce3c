"""A proxy for tests: the system's nginx, or Debian's, unpacked into ``build/``."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from tests.support.debian import unpack, write_program

FOLDER = Path(__file__).parents[2] / "build" / "nginx"
CONFIGURATION = """
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location {prefix}/ {{
      proxy_pass http://{server}/;
      proxy_set_header Host $http_host;
      proxy_http_version 1.1;
    }}
  }}
}}
"""


def find_nginx() -> Path:
    """Return the program; it is fetched once if the system has none."""
    if found := shutil.which("nginx"):
        return Path(found)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with FileLock(FOLDER / "lock"):
        if not (FOLDER / "nginx").exists():
            unpack(FOLDER, "nginx")
            write_program(FOLDER, "nginx", "usr/sbin/nginx")
    return FOLDER / "nginx"


@contextmanager
def open_proxy(server: str, prefix: str, folder: Path) -> Iterator[str]:
    """Serve what is at ``server``, a host and a port, below a prefix; yield the address, without a slash at its end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = folder / "nginx.conf"
    path.write_text(CONFIGURATION.format(folder=folder, port=port, prefix=prefix, server=server), encoding="utf-8")
    command = [str(find_nginx()), "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(path)]
    with subprocess.Popen(command) as process:
        try:
            _wait(port)
            yield f"http://127.0.0.1:{port}{prefix}"
        finally:
            process.terminate()


def _wait(port: int) -> None:
    until = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return
