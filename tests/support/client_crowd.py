"""Many clients in one process, each with a connection of its own, that ask at one moment, round after round.

``client_crowd.py SOCKET STORE CLIENTS``. A round is a line of specs, a JSON array, answered by ``ready``; at
the next line new clients ask, client i for spec i modulo their number, and there is a line for each: the
spec's length, the key, where it came from, and whether image and source belong together and to that spec.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from pathlib import Path

from kaas.cache.artifact import open_artifact
from kaas.client.kernel_client import KernelClient
from kaas.kernel_library.registry import parse_spec
from kaas.kernel_library.spec import KernelSpec


def ask_together(socket: Path, store: Path, count: int, specs: list[KernelSpec]) -> list[str]:
    """One round."""
    clients = [KernelClient(store, socket) for _ in range(count)]
    lines: list[str] = [""] * count
    together = threading.Barrier(count + 1)

    def ask(index: int) -> None:
        spec, client = specs[index % len(specs)], clients[index]
        together.wait()
        handle = client.find((spec, None)) or client.fetch((spec, None), 240, strict=False)
        digest = hashlib.sha256(handle.source.encode()).hexdigest().encode()
        with open_artifact(client.artifact_path(handle.key), handle.key) as artifact:
            is_right = (
                digest in bytes(artifact.image)
                and artifact.source == handle.source
                and handle.passport.spec == spec.to_record()
            )
        lines[index] = f"{spec.to_record()['length']} {handle.key} {handle.origin} {is_right}"

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.readline()
    together.wait()
    for thread in threads:
        thread.join()
    for client in clients:
        client.link().close()
    return lines


def main() -> None:
    socket, store, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    for line in sys.stdin:
        specs = [parse_spec(text) for text in json.loads(line)]
        print("\n".join(ask_together(socket, store, count, specs)), flush=True)


if __name__ == "__main__":
    main()
