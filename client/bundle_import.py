"""Importing a bundle: everything in it is verified before the first artifact is published.

Through the daemon where one serves the store, otherwise by owning the store as a daemon would. Either way it
takes the rights of the store's owner: through the daemon, artifacts are laid into the store's staging
directory, which nobody else may write to, and the daemon verifies them again under its own policy.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kaas.cache.atomic import store_error, write_staged
from kaas.cache.bundle import Bundle
from kaas.cache.environment_file import read_environment
from kaas.cache.foreign_artifact import Verified, staged_name
from kaas.cache.layout import StoreLayout
from kaas.cache.oci_records import Layer
from kaas.cache.signatures import SignaturePolicy
from kaas.client.daemon_link import DaemonLink
from kaas.client.socket_probe import probe
from kaas.proto.environment import Environment
from kaas.proto.errors import DaemonUnavailable, PermissionDenied

BATCH = 64
BATCH_BYTES = 64 << 20
"""What waits in staging at a time."""

_ASKED_AT_ONCE = 500


class Imported(NamedTuple):
    """What came of an import. ``here`` counts kernels that this node's own passports ask for."""

    way: str
    added: int
    present: int
    here: int | None
    signed: int


def import_bundle(bundle: Bundle, store: Path, socket: Path, policy: SignaturePolicy) -> Imported:
    """Publish every kernel of a bundle that is not in the store yet.

    Raises :class:`BundleRefused` or :class:`SignatureRefused` (nothing is published then),
    :class:`PermissionDenied`, :class:`StoreFull` or :class:`StoreUnavailable`.
    """
    environment = read_environment(store)
    signed = here = 0
    for _, verified in bundle.verify(policy):
        signed += bool(verified.signer)
        here += environment is not None and _is_of(environment, verified)
    problem = probe(socket)
    if problem is None:
        way, (added, present) = "daemon", _through_daemon(bundle, store, DaemonLink(socket))
    elif isinstance(problem, DaemonUnavailable):
        way, (added, present) = "offline", _offline(bundle, store)
    else:
        raise problem
    return Imported(way, added, present, None if environment is None else here, signed)


def _through_daemon(bundle: Bundle, store: Path, link: DaemonLink) -> tuple[int, int]:
    staging = StoreLayout(store.resolve()).staging
    if not os.access(staging, os.W_OK | os.X_OK):
        raise PermissionDenied(
            f"this user (uid {os.getuid()}) may not add to the store {store}",
            hint="import as the user who runs the daemon, and name its store with KAAS_STORE",
            path=str(store),
        )
    layers = bundle.layers
    for start in range(0, len(layers), _ASKED_AT_ONCE):  # whether the daemon's policy lets all of them in
        some = layers[start : start + _ASKED_AT_ONCE]
        link.import_kernels([(one.key, one.sha256, one.signatures, "") for one in some])
    added = present = 0
    for batch in _batches(layers):
        with contextlib.ExitStack() as staged:
            names = [_stage(staged, staging, bundle, layer) for layer in batch]
            reply = link.import_kernels(
                [(one.key, one.sha256, one.signatures, name) for one, name in zip(batch, names, strict=True)]
            )
        added, present = added + reply[0], present + reply[1]
    return added, present


def _stage(staged: contextlib.ExitStack, staging: Path, bundle: Bundle, layer: Layer) -> str:
    content = bundle.read(layer)
    try:
        path = write_staged(staging, staged_name(layer.key), content)
    except OSError as error:
        raise store_error(error, "staging for the daemon in", staging) from None
    staged.callback(path.unlink, missing_ok=True)
    return path.name


def _offline(bundle: Bundle, store: Path) -> tuple[int, int]:
    from kaas.cache.store import Store

    added = present = 0
    with Store.open(store) as owned:
        for layer in bundle.layers:
            was_there = owned.layout.artifact_path(layer.key).exists()
            owned.publish(layer.key, bundle.read(layer))
            added, present = added + (not was_there), present + was_there
    return added, present


def _batches(layers: Sequence[Layer]) -> Iterator[list[Layer]]:
    batch: list[Layer] = []
    size = 0
    for layer in layers:
        if batch and (len(batch) >= BATCH or size + layer.size_bytes > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(layer)
        size += layer.size_bytes
    if batch:
        yield batch


def _is_of(environment: Environment, verified: Verified) -> bool:
    """Whether this node would compile with the same toolchain, generator and options."""
    passport = verified.passport
    known = environment.family_digests.get(str(passport.spec.get("family")))
    return (
        known == passport.generator.family_digest
        and passport == environment.passport(passport.spec, passport.target)
        and (passport.target.soc_name != environment.target.soc_name or passport.target == environment.target)
    )
