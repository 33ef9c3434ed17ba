"""Publishes kernels into a store until it is killed; says each key on standard output once it is published.

Arguments: the store's root, the number to begin with.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.client_store import environment
from support.kernels import encoded, passport, row

from kaas.cache.environment_file import publish_environment
from kaas.cache.index import KernelIndex
from kaas.cache.store import Store


def main(root: Path, number: int) -> None:
    store = Store.open(root)
    index = KernelIndex(root)
    publish_environment(root, environment(generation=number))
    print("open", flush=True)
    while True:
        kernel = passport(number)
        # Sizes from a few kilobytes to some hundred, so that kills meet short and long writes.
        content = encoded(kernel, image=number.to_bytes(8, "big") * (1 + (number * 7919) % 40_000))
        store.publish(kernel.key(), content)
        print(kernel.key(), flush=True)
        index.record(row(kernel, created_unix=float(number)))
        index.flush()
        publish_environment(root, environment(generation=number))
        number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
