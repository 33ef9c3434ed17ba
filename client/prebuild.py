"""Building what a forecast says will be missing, beside the kernels that are in use.

For another part with the same toolchain the node's own daemon does it. For another toolkit, or a kaas that is
installed while an older one serves, a daemon of our own builds in a store of its own; its kernels go into the
node's store as a bundle does, verified byte by byte, and only under the keys that were forecast.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kaas.cache.bundle import Bundle
from kaas.cache.signatures import SignaturePolicy
from kaas.client.bundle_contents import create_bundle
from kaas.client.bundle_import import import_bundle
from kaas.client.daemon_link import DaemonLink
from kaas.client.forecast import Change, Fate, Forecast
from kaas.client.manifest import Entry
from kaas.client.node_builder import identity_of
from kaas.client.prewarm_progress import ends_of_job
from kaas.client.prewarm_run import Task, TaskEnd
from kaas.client.private_daemon import PrivateDaemon
from kaas.kernel_library.registry import parse_spec
from kaas.proto.environment import Environment
from kaas.proto.errors import InternalError, InvalidRequest, SignatureRefused

BUNDLED_AT_ONCE = 4000


def tasks_of(forecast: Forecast) -> list[Task]:
    """What is to be built, in the forecast's order."""
    return [
        Task(position, Entry(parse_spec(fate.kernel.passport.spec), fate.target.soc_name, 0))
        for position, fate in enumerate(forecast.of("cold"))
    ]


def require_buildable(change: Change, now: Environment) -> None:
    """Raise :class:`InvalidRequest` unless this node has what makes kernels with the forecast keys."""
    if change.environment is None:
        raise InvalidRequest(
            f"what will be compiled for {change.reason} is not known, so nothing can be built",
            field="prebuild",
            legal="--sku, or --toolkit with the home of an installed toolkit",
        )
    if change.toolkit is None and identity_of(change.environment) != identity_of(now):
        raise InvalidRequest(
            "the environment is another installation's, and only that can build for it",
            hint="run its own `kaas prewarm` there; `kaas forecast --manifest-out` says what",
            field="prebuild",
            legal="--sku, or --toolkit with the home of an installed toolkit",
        )


@contextmanager
def builder(change: Change, now: Environment, socket: Path) -> Iterator[tuple[DaemonLink, Path | None]]:
    """Who builds: the node's daemon, or one of our own and its store, which goes away at the end.

    Raises :class:`InternalError` when our own would compute other keys than were forecast.
    """
    after = change.environment
    assert after is not None
    if identity_of(after) == identity_of(now):
        link = DaemonLink(socket)
        _require_identity(link.environment(), after)
        yield link, None
        return
    # A Unix socket's path is short, and artifacts want a disk rather than memory.
    with tempfile.TemporaryDirectory(prefix="kaas-prebuild-", dir="/var/tmp") as folder:
        root = Path(folder)
        flags = {
            "socket": str(root / "kaas.sock"),
            "store": str(root / "store"),
            "rest_address": "off",
            "toolkit_home": str(change.toolkit),
            "soc_name": after.target.soc_name,
            "device_options": change.device_options,
        }
        # Settings of the node's daemon are not ours.
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("KAAS_") or name.startswith("KAAS_TWIN_")
        }
        with PrivateDaemon(root, flags, environ=environ, purpose="builder's"):
            link = DaemonLink(root / "kaas.sock")
            try:
                _require_identity(link.environment(), after)
                yield link, root / "store"
            finally:
                link.close()


def _require_identity(found: Environment, wanted: Environment) -> None:
    if identity_of(found) != identity_of(wanted):
        raise InternalError(
            "the builder's toolchain or generator is not the one that the forecast is about",
            hint="something was installed meanwhile, or the daemon serves another store; forecast again",
        )


def ends_of_prebuild(link: DaemonLink, forecast: Forecast, tasks: Sequence[Task]) -> Iterator[TaskEnd]:
    """Build, and raise :class:`InternalError` at the first kernel whose key is not the forecast one."""
    fates: list[Fate] = forecast.of("cold")
    for end in ends_of_job(link, tasks, "forecast"):
        if end.error is None and end.key != fates[end.task.position].new_key:
            raise InternalError(
                f"built {end.key[:12]} where {fates[end.task.position].new_key[:12]} was forecast"
            )
        yield end


def bring_in(built: Path, keys: Sequence[str], store: Path, socket: Path) -> int:
    """Publish these kernels of another store in the node's; how many were added.

    Raises what :func:`import_bundle` raises; :class:`SignatureRefused` when the daemon wants signatures.
    """
    added = 0
    for start in range(0, len(keys), BUNDLED_AT_ONCE):
        some = dict.fromkeys(keys[start : start + BUNDLED_AT_ONCE], "forecast")
        file = built.parent / "prebuilt.tar"
        create_bundle(file, built, some)
        try:
            with Bundle.open(file) as bundle:
                added += import_bundle(bundle, store, socket, SignaturePolicy()).added
        except SignatureRefused as error:
            raise SignatureRefused(
                error.message, hint="--bundle FILE writes them to a file that can be signed", **error.details
            ) from None
        finally:
            file.unlink(missing_ok=True)
    return added
