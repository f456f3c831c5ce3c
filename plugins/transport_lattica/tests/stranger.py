"""A peer of nobody's: pushes what it is told to an address, for `test_lattica_strangers`.

``python stranger.py MULTIADDR``; each line of standard input is ``METHOD SIZE HEX``: HEX and then zeros, SIZE bytes in
all. It prints the answer to each, or the error.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

os.environ.update(RUST_LOG="off", RUST_BACKTRACE="0")


def main() -> None:
    from lattica_python_core import LatticaSDK

    address = sys.argv[1]
    peer = address.rpartition("/")[2]
    with tempfile.TemporaryDirectory() as folder:
        sdk = LatticaSDK(
            {
                "listen_addrs": ["/ip4/127.0.0.1/tcp/0"],
                "bootstrap_nodes": [address],
                "with_mdns": False,
                "with_upnp": False,
                "protocol": "/parallax-tunnel/1",
                "key_path": f"{folder}/key",
                "storage_path": f"{folder}/blocks",
                "dht_db_path": f"{folder}/dht",
            }
        )
        while peer not in sdk.get_all_peers():
            time.sleep(0.01)
        client = sdk.get_client(peer)
        for line in sys.stdin:
            method, size, text = line.split(" ")
            content = bytes.fromhex(text.strip())
            try:
                answer = bytes(client.call(method, content + bytes(int(size) - len(content))).result(30))
                print(answer.decode(), flush=True)
            except RuntimeError as error:
                print(f"error: {error}"[:200], flush=True)
        sdk.close()
    os._exit(0)


if __name__ == "__main__":
    main()
