"""Which stored kernels this node would ask for today, and what is known of their use. Reads only."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kaas.cache.artifact import open_artifact
from kaas.cache.layout import StoreLayout
from kaas.client.bundle_contents import stored_keys
from kaas.client.daemon_link import DaemonLink
from kaas.client.kernel_listing import list_kernels
from kaas.client.socket_probe import probe
from kaas.proto.environment import Environment
from kaas.proto.errors import ArtifactDamaged, KaasError
from kaas.proto.passport import Passport


class Use(NamedTuple):
    """What the daemon knows of a kernel's use: hits since it was stored, live holders, a pin."""

    hits: int
    leases: int
    pinned: bool


class LiveKernel(NamedTuple):
    """A kernel that a request of today would hit. ``use`` is ``None`` where no daemon could be asked."""

    key: str
    passport: Passport
    compile_seconds: float
    size_bytes: int
    use: Use | None = None

    @property
    def family(self) -> str:
        """Its family's name."""
        return str(self.passport.spec.get("family"))


class StoreContents(NamedTuple):
    """``live`` kernels; ``keys`` of everything stored; how many are ``stale`` (nobody would ask for them) or
    ``damaged``; ``asked_daemon``: whether use is known."""

    live: list[LiveKernel]
    keys: frozenset[str]
    stale: int
    damaged: int
    asked_daemon: bool


def read_contents(store: Path, socket: Path, environment: Environment) -> StoreContents:
    """Read every artifact's passport, and ask the daemon about use if it serves this store.

    Raises :class:`StoreUnavailable` when the store cannot be listed.
    """
    layout = StoreLayout(store)
    used = _use_of(socket, environment)
    live: list[LiveKernel] = []
    stale = damaged = 0
    keys = stored_keys(store)
    for key in keys:
        try:
            with open_artifact(layout.artifact_path(key), key) as artifact:
                passport = artifact.passport
                seconds, size = artifact.compile_seconds, artifact.size_bytes
        except FileNotFoundError:
            continue  # evicted meanwhile
        except (ArtifactDamaged, KaasError):
            damaged += 1
            continue
        if is_of(environment, passport):
            use = None if used is None else used.get(key, Use(0, 0, pinned=False))
            live.append(LiveKernel(key, passport, seconds, size, use))
        else:
            stale += 1
    return StoreContents(live, frozenset(keys), stale, damaged, used is not None)


def is_of(environment: Environment, passport: Passport) -> bool:
    """Whether a node with this environment would compute the passport's key for its spec and target."""
    own = environment.target
    if passport.target.soc_name == own.soc_name and passport.target != own:
        return False
    try:
        return passport == environment.passport(passport.spec, passport.target)
    except KaasError:
        return False


def _use_of(socket: Path, environment: Environment) -> dict[str, Use] | None:
    if probe(socket) is not None:
        return None
    link = DaemonLink(socket)
    try:
        if link.environment() != environment:
            return None  # it serves another store
        kernels, _ = list_kernels(link, 1_000_000, state="ready")
    except KaasError:
        return None
    return {row["key"]: Use(row["hits"], row["leases"], row["pinned"]) for row in kernels}
