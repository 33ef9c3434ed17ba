"""Store: the daemon's side of the artifacts on disk; publishing, loading, repair.

Readers (clients) need none of this: an artifact is either there, whole and verified by whoever opens it, or
it is a miss. Methods may be called from several threads.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kaas.cache.artifact import Artifact, is_marked, mark_verified, open_artifact
from kaas.cache.atomic import persistently, store_error, sync_directory, write_staged
from kaas.cache.footprint import Footprint
from kaas.cache.layout import StoreLayout, is_foreign_shard, key_of_file
from kaas.cache.limits import StoreLimits, StoreUsage
from kaas.cache.ownership import StoreOwnership
from kaas.cache.placement import (
    DIRECTORY_MODE,
    PRIVATE_MODE,
    directories_of,
    make_directory,
    prepare_root,
    require_private,
)
from kaas.cache.quarantine import QuarantineRecord, put_away, quarantined
from kaas.proto.errors import ArtifactDamaged, PermissionDenied, StoreFull, StoreUnavailable

_LOG = logging.getLogger(__name__)

ATTEMPTS = 3
"""How often a start or a listing is tried when the disk fails it: what passes must not keep a daemon down."""

_PASSING = frozenset(
    {errno.EIO, errno.EINTR, errno.EAGAIN, errno.EBUSY, errno.ESTALE, errno.ENOSPC, errno.EDQUOT}
)


class PassedOver(NamedTuple):
    """A directory of artifacts that was not listed; ``is_foreign``: it is none, and no part of the store."""

    path: Path
    reason: str
    is_foreign: bool


class Store:
    """One node's artifacts, owned by one daemon from :meth:`open` to :meth:`close` or its death."""

    def __init__(
        self, layout: StoreLayout, ownership: StoreOwnership, limits: StoreLimits | None = None
    ) -> None:
        self.layout = layout
        self.limits = limits or StoreLimits()
        self._ownership = ownership
        self._settle = threading.Lock()  # held while deciding what lies at a key's path
        self._footprint = Footprint()
        self.on_quarantine: Callable[[QuarantineRecord], None] | None = None
        """Hears of every artifact that is taken out of service, in whichever thread does it."""

    @classmethod
    def open(
        cls, root: str | Path, limits: StoreLimits | None = None, *, allow_network_fs: bool = False
    ) -> Store:
        """Create or open the store at ``root``, take ownership, and sweep what a dead daemon left unfinished.

        Raises :class:`StoreUnavailable` (unsafe, not writable, or in use by another daemon) or
        :class:`StoreFull` when not even its directories can be created.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                return cls._open(root, limits, allow_network_fs)
            except (StoreFull, StoreUnavailable) as error:
                if error.details.get("errno") not in _PASSING:
                    raise
                _LOG.warning("the store could not be opened and is tried again: %s", error)
        return cls._open(root, limits, allow_network_fs)

    @classmethod
    def _open(cls, root: str | Path, limits: StoreLimits | None, allow_network_fs: bool) -> Store:
        layout = StoreLayout(prepare_root(root, allow_network_fs=allow_network_fs))
        ownership = StoreOwnership(layout)
        try:
            try:
                for directory, mode in directories_of(layout):
                    require_private(directory, mode)
                    if mode != PRIVATE_MODE:
                        _let_others_read(directory)
            except OSError as error:
                raise store_error(error, "preparing the store", layout.root) from error
            _sweep(layout.staging)
            _require_writable(layout)
            _names(layout.artifacts)
        except BaseException:
            ownership.release()
            raise
        return cls(layout, ownership, limits)

    @property
    def usage(self) -> StoreUsage:
        """What the artifacts take, as far as :meth:`measure` has looked."""
        return self._footprint.usage

    def measure(self) -> Iterator[None]:
        """Measure what the artifacts take, a directory at each step; publishing goes on meanwhile."""
        for shard in self._footprint.shards():
            with self._settle:
                self._footprint.measure(shard, self.layout.artifacts / shard)
            yield

    @property
    def root(self) -> Path:
        """The store's real directory."""
        return self.layout.root

    def close(self) -> None:
        """Give up ownership; artifacts stay readable."""
        self._ownership.release()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def publish(self, key: str, encoded: bytes) -> Path:
        """Make an artifact visible to everybody, whole and synced, and return its path.

        An intact artifact that is already there is kept: what was served once stays what is served. A damaged
        one is quarantined and replaced. Raises :class:`ArtifactDamaged` when ``encoded`` is not the artifact
        of ``key``, :class:`StoreFull` (a hard limit or the disk) or :class:`StoreUnavailable` when it cannot
        be stored; then nothing of it is left behind.
        """
        path = self.layout.artifact_path(key)
        with Artifact(encoded, expected_key=key, origin=f"new {path.name}") as verified:
            created_unix = verified.created_unix
        if is_foreign_shard(path.parent):
            raise StoreUnavailable(
                f"{path.parent} is no directory, so no kernel can be stored there",
                hint=f"move {path.parent} away; the daemon makes the directory",
                path=str(path.parent),
            )
        with self._settle:
            if self._intact(key, path):
                return path
        self._require_room(len(encoded))
        try:
            try:
                self._write(key, path, encoded, created_unix)
            except FileNotFoundError:  # somebody removed our directories under us
                self._restore_directories()
                self._write(key, path, encoded, created_unix)
        except OSError as error:
            raise store_error(error, "publishing", path) from error
        return path

    def load(self, key: str) -> Artifact | None:
        """The verified artifact, or ``None``: not there, or damaged and now in quarantine."""
        path = self.layout.artifact_path(key)
        if is_foreign_shard(path.parent):
            return None
        try:
            return self._verified(key, path)
        except FileNotFoundError:
            return None
        except ArtifactDamaged:
            with self._settle:  # a repair may have been published since: judge again what lies there now
                try:
                    return self._verified(key, path)
                except (FileNotFoundError, StoreUnavailable):
                    return None
                except (ArtifactDamaged, PermissionDenied) as error:
                    self._put_away(key, path, error)
        except PermissionDenied as error:  # it is ours, so this is damage of its own kind
            with self._settle:
                self._put_away(key, path, error)
        except StoreUnavailable as error:
            _LOG.warning("cannot read kernel %s just now: %s", key[:12], error)
        return None

    def verify(self, key: str) -> tuple[int, bool] | None:
        """Read an artifact again, from the disk: its size, and whether it is intact; ``None`` if absent.

        A damaged one is in quarantine when this returns. One that cannot be read just now raises
        :class:`StoreUnavailable`.
        """
        path = self.layout.artifact_path(key)
        if is_foreign_shard(path.parent):
            return None
        try:
            size = path.lstat().st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise store_error(error, "checking", path) from error
        with contextlib.suppress(OSError):
            _drop_from_memory(path)
        artifact = self.load(key)
        if artifact is not None:
            artifact.close()
            return size, True
        if os.path.lexists(path):
            raise StoreUnavailable(f"{path} cannot be read", path=str(path))
        return size, False

    def remove(self, key: str) -> bool:
        """Unlink an artifact; who has it open keeps its bytes. ``False`` when there was none."""
        path = self.layout.artifact_path(key)
        if is_foreign_shard(path.parent):
            return False
        with self._settle:
            try:
                size = path.lstat().st_size
                path.unlink()
            except FileNotFoundError:
                return False
            except OSError as error:
                raise store_error(error, "removing", path) from error
            self._footprint.add(key[:2], -size, -1)
        return True

    def keys(self, passed_over: Callable[[PassedOver], None] | None = None) -> Iterator[str]:
        """Keys of all artifacts by name, in order, unverified; foreign files are passed over.

        Directories that cannot be listed are passed over, too, if somebody wants to hear of them. Raises
        :class:`StoreUnavailable` or :class:`StoreFull`, perhaps after some keys, when nobody does, and when
        not even the directory of all of them can be listed.
        """
        for shard in _names(self.layout.artifacts):
            if len(shard) != 2:
                continue
            directory = self.layout.artifacts / shard
            if is_foreign_shard(directory):
                if passed_over is not None:
                    passed_over(PassedOver(directory, "it is no directory", is_foreign=True))
                continue
            try:
                names = _names(directory)
            except (StoreFull, StoreUnavailable) as error:
                if passed_over is None:
                    raise
                passed_over(PassedOver(directory, error.message, is_foreign=False))
                continue
            for name in names:
                key = key_of_file(shard, name)
                if key is not None:
                    yield key

    def quarantine(self, key: str, reason: str) -> QuarantineRecord | None:
        """Take an artifact out of service on purpose; ``None`` when there is none."""
        path = self.layout.artifact_path(key)
        if is_foreign_shard(path.parent):
            return None
        with self._settle:
            return self._move_away(key, path, reason, {})

    def quarantined(self) -> list[QuarantineRecord]:
        """What was taken out of service, oldest first.

        Raises :class:`StoreUnavailable` or :class:`StoreFull` when the quarantine cannot be listed.
        """
        try:
            return list(quarantined(self.layout))
        except OSError as error:
            raise store_error(error, "listing", self.layout.quarantine) from error

    def _write(self, key: str, path: Path, encoded: bytes, created_unix: float) -> None:
        try:
            _let_others_read(path.parent)
        except FileNotFoundError:
            make_directory(path.parent, DIRECTORY_MODE)
            sync_directory(path.parent.parent)
        staged = write_staged(self.layout.staging, key, encoded)
        try:
            with self._settle:
                if self._intact(key, path):
                    staged.unlink()
                    return
                with contextlib.suppress(OSError):  # without its mark it is verified at each opening
                    mark_verified(staged, created_unix)
                staged.rename(path)
                self._footprint.add(key[:2], len(encoded), 1)
        except BaseException:
            with contextlib.suppress(OSError):
                staged.unlink()
            raise
        sync_directory(path.parent)

    def _verified(self, key: str, path: Path) -> Artifact:
        """The artifact, read and verified now; a file without its mark gets it."""
        try:
            before = path.lstat()
        except OSError:  # opening it says what is wrong
            return _opened(path, key)
        artifact = _opened(path, key)
        if not is_marked(before, artifact.created_unix):
            with contextlib.suppress(OSError):
                after = path.lstat()
                if (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns):
                    mark_verified(path, artifact.created_unix)
        return artifact

    def _intact(self, key: str, path: Path) -> bool:
        """Whether an intact artifact lies at ``path``; a damaged one is put away."""
        try:
            try:
                _opened(path, key).close()
            except ArtifactDamaged:  # a failing disk may say so of a whole one: look twice before it goes
                open_artifact(path, expected_key=key).close()
        except FileNotFoundError:
            return False
        except (ArtifactDamaged, PermissionDenied) as error:
            self._put_away(key, path, error)
            return False
        except StoreUnavailable:
            return False  # cannot tell; replacing it by an equal kernel is right either way
        return True

    def _put_away(self, key: str, path: Path, error: ArtifactDamaged | PermissionDenied) -> None:
        self._move_away(key, path, error.message, {"part": error.details.get("part", "file")})

    def _move_away(
        self, key: str, path: Path, reason: str, details: dict[str, Any]
    ) -> QuarantineRecord | None:
        try:
            size = path.lstat().st_size
        except OSError:
            size = 0
        record = put_away(self.layout, key, path, reason, details)
        if size and not os.path.lexists(path):
            self._footprint.add(key[:2], -size, -1)
        if record is not None and self.on_quarantine is not None:
            self.on_quarantine(record)
        return record

    def _require_room(self, size_bytes: int) -> None:
        limits, used = self.limits, self.usage.bytes
        if limits.hard_bytes and used + size_bytes > limits.hard_bytes:
            raise StoreFull(
                f"the store holds {used} of at most {limits.hard_bytes} bytes",
                hint="raise store_hard_bytes, or lower store_soft_bytes so that eviction makes room",
                path=str(self.root),
                used_bytes=used,
                limit_bytes=limits.hard_bytes,
            )
        if not limits.min_free_bytes:
            return
        free = _free_bytes(self.root)
        if free is not None and free - size_bytes < limits.min_free_bytes:
            raise StoreFull(
                f"the file system of {self.root} has {free} bytes free, of which {limits.min_free_bytes} "
                "are to stay free",
                hint="free space there, or lower store_min_free_bytes; serving what is stored goes on",
                path=str(self.root),
                free_bytes=free,
                limit_bytes=limits.min_free_bytes,
            )

    def _restore_directories(self) -> None:
        for directory, mode in directories_of(self.layout):
            make_directory(directory, mode)


def _opened(path: Path, key: str) -> Artifact:
    """The artifact; a file system that could not open it gets a second chance, as a compile costs more."""
    return persistently(lambda: open_artifact(path, expected_key=key), StoreUnavailable)


def _let_others_read(directory: Path) -> None:
    """Finish a directory whose maker died before it set the mode: clients of other users read it, too."""
    if stat.S_IMODE(directory.lstat().st_mode) == PRIVATE_MODE:
        directory.chmod(DIRECTORY_MODE)


def _sweep(staging: Path) -> None:
    """Remove everything unfinished: nobody else owns the store, so all of it is left over."""
    try:
        entries = list(os.scandir(staging))
    except OSError as error:
        _LOG.warning("cannot look for left-overs in %s: %s", staging, error)
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                Path(entry.path).unlink()
        except OSError as error:
            _LOG.warning("cannot remove the left-over %s: %s", entry.path, error)


def _require_writable(layout: StoreLayout) -> None:
    try:
        write_staged(layout.staging, "probe", b"").unlink()
    except OSError as error:
        problem = store_error(error, "writing to the store", layout.root)
        if not isinstance(problem, StoreFull):
            raise problem from error
        _LOG.warning("the store can be read but not added to: %s", problem)


def _free_bytes(directory: Path) -> int | None:
    try:
        status = os.statvfs(directory)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def _drop_from_memory(path: Path) -> None:
    """Have the next read come from the disk, as far as the kernel follows the advice."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _names(directory: Path) -> list[str]:
    try:
        # Names only: half the cost at 100,000 entries.
        return persistently(lambda: sorted(os.listdir(directory)), OSError, ATTEMPTS)  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise store_error(error, "listing", directory) from error
