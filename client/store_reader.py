"""StoreReader: the node's store as a client sees it: read-only, no lock, no RPC, no writable HOME."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kaas.cache.artifact import Artifact, open_artifact, open_marked
from kaas.cache.environment_file import read_environment
from kaas.cache.layout import ARTIFACT_SUFFIX, StoreLayout
from kaas.client.key_schedule import KeySchedule
from kaas.client.notices import warn
from kaas.proto.errors import ArtifactDamaged

if TYPE_CHECKING:
    from pathlib import Path

    from kaas.kernel_library.spec import KernelSpec
    from kaas.proto.environment import Environment
    from kaas.proto.passport import KernelKey
    from kaas.proto.target import Target


def target_for(environment: Environment, soc_name: str | None) -> Target:
    """The node's own target (whose live core counts count), or the table's for another SoC name.

    Raises :class:`UnsupportedTarget` with near matches.
    """
    own = environment.target
    if soc_name is None or soc_name.strip().casefold() in ("", own.soc_name.casefold()):
        return own
    from kaas.kernel_library.targets import target_named

    return target_named(soc_name)


class StoreReader:
    """Finds kernels in the store under ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._layout = StoreLayout(root)
        self._artifacts = os.fspath(self._layout.artifacts)
        self._schedules: tuple[Environment | None, dict[str | None, KeySchedule]] = (None, {})

    def environment(self) -> Environment | None:
        """What the daemon published last, or ``None`` when there is nothing to read."""
        return read_environment(self.root)

    def key(self, environment: Environment, spec: KernelSpec, soc_name: str | None) -> KernelKey:
        """The key of a spec here. Raises :class:`UnknownFamily` or :class:`UnsupportedTarget`."""
        of, schedules = self._schedules
        if environment is not of:
            schedules = {}
            self._schedules = (environment, schedules)
        schedule = schedules.get(soc_name)
        if schedule is None:
            schedule = schedules[soc_name] = KeySchedule(environment, target_for(environment, soc_name))
        return schedule.key(spec)

    def artifact_path(self, key: KernelKey) -> Path:
        """Where a kernel lies, there or not."""
        return self._layout.artifact_path(key)

    def find(self, key: KernelKey, whole: bool = False) -> Artifact | None:
        """The artifact, verified now or before its first use; ``None`` when it is missing or damaged.

        ``whole``: now, whether it carries its mark or not.

        Raises :class:`PermissionDenied` or :class:`StoreUnavailable` when the store cannot be read from here.
        """
        try:
            # Spelt out, since pathlib costs as much as opening the file.
            path = f"{self._artifacts}/{key[:2]}/{key}{ARTIFACT_SUFFIX}"
            return open_artifact(path, key) if whole else open_marked(path, key)
        except FileNotFoundError:
            return None
        except ArtifactDamaged as error:
            warn("a damaged artifact counts as a miss: %s", error)
            return None
