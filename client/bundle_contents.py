"""Which kernels go into a bundle: the closure of a manifest, keys, or everything that a store holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kaas.cache.artifact import read_artifact_file
from kaas.cache.bundle import describe, write_bundle
from kaas.cache.environment_file import read_environment
from kaas.cache.foreign_artifact import Verified, verify_foreign
from kaas.cache.layout import ARTIFACT_SUFFIX, StoreLayout, is_key
from kaas.cache.oci_records import Layer
from kaas.cache.signatures import SigningKey
from kaas.client.store_reader import StoreReader
from kaas.proto.errors import ArtifactDamaged, InvalidRequest, KernelNotFound, StoreUnavailable

SHORTEST_PREFIX = 6
_SHOWN = 5


class Missing(NamedTuple):
    """A kernel that was wanted and is not in the store: its key and what asked for it."""

    key: str
    wanted_by: str


def stored_keys(store: Path) -> list[str]:
    """Keys of all artifacts by name, in order. Raises :class:`StoreUnavailable`."""
    artifacts = StoreLayout(store).artifacts
    try:
        shards = sorted(path for path in artifacts.iterdir() if path.is_dir() and len(path.name) == 2)
        names = [name.name for shard in shards for name in shard.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreUnavailable(f"{artifacts} cannot be listed: {error.strerror}", path=str(store)) from None
    keys = (name.removesuffix(ARTIFACT_SUFFIX) for name in names if name.endswith(ARTIFACT_SUFFIX))
    return sorted(key for key in keys if is_key(key))


def keys_of_prefixes(store: Path, words: Sequence[str]) -> list[str]:
    """Whole keys for keys or their first digits.

    Raises :class:`InvalidRequest` (too short, ambiguous) or :class:`KernelNotFound`.
    """
    known = stored_keys(store)
    found: list[str] = []
    for word in words:
        if len(word) < SHORTEST_PREFIX or not set(word) <= set("0123456789abcdef"):
            raise InvalidRequest(
                f"{word[:80]!r} is no key", field="key", legal="6 to 64 lower-case hexadecimal digits"
            )
        matches = [key for key in known if key.startswith(word)]
        if not matches:
            raise KernelNotFound(f"no stored kernel has a key that begins with {word}", key=word)
        if len(matches) > 1:
            raise InvalidRequest(f"{len(matches)} keys begin with {word}", field="key", legal="more digits")
        found += matches
    return found


def keys_of_manifest(store: Path, manifest: Path) -> dict[str, str]:
    """The keys that a manifest's kernels have on this node, and which entry wants each.

    Raises :class:`InvalidManifest` or :class:`StoreUnavailable` when no daemon has ever served the store.
    """
    from kaas.client.manifest import on_toolchain, read_manifest

    environment = read_environment(store)
    if environment is None:
        raise StoreUnavailable(
            f"{store} does not say which toolchain it serves, so that keys cannot be computed",
            hint="start its daemon once, or name keys",
            path=str(store),
        )
    reader = StoreReader(store)
    return {
        reader.key(environment, entry.spec, entry.soc_name or None): f"{entry.spec.family}, line {entry.line}"
        for entry in on_toolchain(read_manifest(manifest), environment.toolchain.cann_version)
    }


def create_bundle(
    path: Path,
    store: Path,
    wanted: dict[str, str],
    *,
    allow_missing: bool = False,
    signing_key: SigningKey | None = None,
) -> tuple[int, list[Missing]]:
    """Write a bundle of these keys; how many kernels it holds, and which are missing.

    A damaged artifact is missing. Raises :class:`KernelNotFound` when any is missing, unless allowed, or when
    nothing is left; then nothing is written.
    """
    missing: list[Missing] = []
    layout = StoreLayout(store)
    manifest, config = describe(_artifacts(layout, wanted, missing), signing_key)
    count = len(wanted) - len(missing)
    if missing and not allow_missing:
        shown = ", ".join(f"{one.key[:12]} ({one.wanted_by})" for one in missing[:_SHOWN])
        raise KernelNotFound(
            f"{len(missing)} of {len(wanted)} kernels are not in {store}: {shown}",
            hint="kaas prewarm MANIFEST compiles them; --allow-missing leaves them out",
            keys=[one.key for one in missing],
        )
    if not count:
        raise KernelNotFound(f"{store} holds none of the kernels", hint="kaas prewarm MANIFEST compiles them")

    def fetch(layer: Layer) -> bytes:
        return read_artifact_file(str(layout.artifact_path(layer.key)))

    try:
        write_bundle(path, manifest, config, fetch)
    except FileNotFoundError as error:
        raise KernelNotFound(f"a kernel was evicted meanwhile: {error.filename}", hint="try again") from None
    return count, missing


def _artifacts(
    layout: StoreLayout, wanted: dict[str, str], missing: list[Missing]
) -> Iterator[tuple[str, bytes, Verified]]:
    for key in sorted(wanted):
        try:
            encoded = read_artifact_file(str(layout.artifact_path(key)))
            verified = verify_foreign(encoded, key=key, origin=f"{key[:12]}.kernel")
        except (FileNotFoundError, ArtifactDamaged):
            missing.append(Missing(key, wanted[key]))
            continue
        yield key, encoded, verified
