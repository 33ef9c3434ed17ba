"""fsck: everything in a store's directory looked at, and put right where that is possible."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from kaas.cache.artifact import open_artifact
from kaas.cache.atomic import FILE_MODE, store_error
from kaas.cache.layout import ARTIFACT_SUFFIX, StoreLayout, is_foreign_shard, key_of_file
from kaas.cache.ownership import is_owned
from kaas.cache.placement import DIRECTORY_MODE, directories_of
from kaas.cache.shadow import IndexShadow, ShadowLostError, indexed_keys
from kaas.cache.store import Store
from kaas.proto.errors import ArtifactDamaged, KaasError, PermissionDenied, StoreFull, StoreUnavailable

Kind = Literal["damaged", "left over", "foreign", "permissions", "index", "unreadable"]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not as it should be; ``cure`` is what to do when it was not put right."""

    kind: Kind
    path: str
    message: str
    put_right: bool = False
    cure: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at and found."""

    store: str
    checked: int
    checked_bytes: int
    indexed: int
    problems: list[Problem]

    @property
    def is_clean(self) -> bool:
        """Nothing was found."""
        return not self.problems

    @property
    def is_sound(self) -> bool:
        """Whatever was found has been put right."""
        return all(problem.put_right for problem in self.problems)


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """How many artifacts there are and are indexed, and how many of those are lost; ``None``: unknown."""

    artifacts: int | None
    indexed: int | None
    lost: int = 0

    @classmethod
    def of(cls, layout: StoreLayout) -> Contents:
        """By name only; changes nothing, and needs no right but to read. The index is the daemon's alone."""
        if not layout.artifacts.is_dir():
            return cls(artifacts=None, indexed=None)
        stored = {key for key, _ in _artifacts(layout, [])}
        keys = indexed_keys(layout)
        if keys is None:
            return cls(artifacts=len(stored), indexed=None)
        return cls(artifacts=len(stored), indexed=len(keys), lost=len(keys - stored))


def examine(root: Path, tell: Callable[[int], None] = lambda _: None) -> Report:
    """Look at the store at ``root`` and change nothing; a daemon may be at work there.

    ``tell`` hears of the number of artifacts checked so far. Raises :class:`StoreUnavailable` if there is no
    store.
    """
    layout = _layout(root)
    problems = list(permissions(layout, repair=False))
    if not is_owned(layout):
        problems += [_left_over(path, "it goes when a daemon starts") for path in _entries(layout.staging)]
    checked = size = 0
    for key, path in _artifacts(layout, problems):
        try:
            with open_artifact(path, key) as artifact:
                size += artifact.size_bytes
        except FileNotFoundError:
            continue  # evicted meanwhile
        except (ArtifactDamaged, PermissionDenied) as error:
            problems.append(
                Problem(kind="damaged", path=str(path), message=error.message, cure="kaas fsck puts it away")
            )
        except StoreUnavailable as error:
            problems.append(_unreadable(path, error))
        checked += 1
        tell(checked)
    return Report(store=str(layout.root), checked=checked, checked_bytes=size, indexed=0, problems=problems)


def put_right(root: Path, tell: Callable[[int], None] = lambda _: None) -> Report:
    """Look at the store at ``root`` and put right what can be. No daemon may have it open.

    Damaged artifacts go into quarantine, an index that cannot be read is removed (a daemon makes it anew),
    modes are corrected, left-overs go. Raises :class:`StoreUnavailable`, also when a daemon owns the store.
    """
    layout = _layout(root)
    problems = list(permissions(layout, repair=True))
    left = list(_entries(layout.staging))
    with Store.open(root, allow_network_fs=True) as store:
        problems += [_left_over(path, f"rm -r {path}", not os.path.lexists(path)) for path in left]
        indexed = _index(layout, problems)
        checked = size = 0
        for key, path in _artifacts(layout, problems):
            try:
                found = store.verify(key)
            except StoreUnavailable as error:
                problems.append(_unreadable(path, error))
                continue
            if found is None:
                continue
            checked, size = checked + 1, size + found[0]
            tell(checked)
            if not found[1]:
                problems.append(
                    Problem(
                        kind="damaged",
                        path=str(path),
                        message=_why(store, key),
                        put_right=True,
                        cure="it is in quarantine, and built anew when somebody asks for it",
                    )
                )
    return Report(
        store=str(layout.root), checked=checked, checked_bytes=size, indexed=indexed, problems=problems
    )


def _layout(root: Path) -> StoreLayout:
    layout = StoreLayout(root)
    if not layout.root.is_dir():
        raise StoreUnavailable(
            f"{root} is not there", hint="set KAAS_STORE, or start the daemon once", path=str(root)
        )
    # Modes are changed and left-overs removed below, so whatever is no store must be left alone.
    if not (layout.environment_file.is_file() and layout.holder_file.is_file()):
        raise StoreUnavailable(
            f"{root} is no store: no daemon has ever run there",
            hint="set KAAS_STORE, or name the store with --store",
            path=str(root),
        )
    return layout


def _entries(directory: Path) -> Iterator[Path]:
    try:
        yield from sorted(directory.iterdir())
    except OSError:
        return


def _listed(directory: Path, problems: list[Problem]) -> list[Path]:
    """Like :func:`_entries`; that a directory cannot be listed is a problem."""
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(_unreadable(directory, store_error(error, "listing", directory)))
        return []


def permissions(layout: StoreLayout, *, repair: bool) -> Iterator[Problem]:
    """Directories that others may write to, and artifacts that they may write to or not read."""
    directories = [(layout.root, DIRECTORY_MODE), *directories_of(layout)]
    shards = [path for path in _entries(layout.artifacts) if path.is_dir() and not path.is_symlink()]
    directories += [(shard, DIRECTORY_MODE) for shard in shards]
    for path, mode in directories:
        yield from _mode(path, mode, stat.S_ISDIR, repair)
    for shard in shards:
        for path in _entries(shard):
            if path.name.endswith(ARTIFACT_SUFFIX):
                yield from _mode(path, FILE_MODE, stat.S_ISREG, repair)


def _mode(path: Path, wanted: int, is_kind: Callable[[int], bool], repair: bool) -> Iterator[Problem]:
    try:
        status = path.lstat()
    except OSError:
        return
    mode = stat.S_IMODE(status.st_mode)
    too_open = mode & ~wanted & (stat.S_IWGRP | stat.S_IWOTH)
    too_closed = wanted & ~mode & (stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IROTH)
    if not is_kind(status.st_mode) or not (too_open or too_closed):
        return
    done = False
    if repair:
        with contextlib.suppress(OSError):
            path.chmod(wanted)
            done = True
    yield Problem(
        kind="permissions",
        path=str(path),
        message=f"mode {mode:04o}, should be {wanted:04o}",
        put_right=done,
        cure=f"chmod {wanted:04o} {path}",
    )


def _index(layout: StoreLayout, problems: list[Problem]) -> int:
    """Rows that can be read; an index that cannot be is removed."""
    try:
        return len(IndexShadow(layout).read())
    except ShadowLostError as error:
        problems.append(
            Problem(
                kind="index",
                path=str(layout.index),
                message=f"it cannot be read: {error}",
                put_right=not os.path.lexists(layout.index),
                cure="the next daemon makes it anew from the artifacts",
            )
        )
        return 0


def _artifacts(layout: StoreLayout, problems: list[Problem]) -> Iterator[tuple[str, Path]]:
    """Keys and files of all artifacts; whatever else lies among them is a problem."""
    for shard in _listed(layout.artifacts, problems):
        if len(shard.name) != 2 or is_foreign_shard(shard):
            problems.append(_foreign(shard))
            continue
        for path in _listed(shard, problems):
            key = key_of_file(shard.name, path.name)
            if key is None:
                problems.append(_foreign(path))
            else:
                yield key, path


def _left_over(path: Path, cure: str, put_right: bool = False) -> Problem:
    return Problem(
        kind="left over",
        path=str(path),
        message="an unfinished file of a daemon that is gone",
        put_right=put_right,
        cure=cure,
    )


def _unreadable(path: Path, error: StoreFull | StoreUnavailable) -> Problem:
    return Problem(
        kind="unreadable",
        path=str(path),
        message=error.message,
        cure="look at the disk (dmesg, smartctl)",
    )


def _foreign(path: Path) -> Problem:
    no_part = "a link, or no directory: nothing behind it is part of the store"
    return Problem(
        kind="foreign",
        path=str(path),
        message=no_part if len(path.name) == 2 else "no artifact has such a name",
        cure=f"move {path} away",
    )


def _why(store: Store, key: str) -> str:
    try:
        return next(record.reason for record in reversed(store.quarantined()) if record.key == key)
    except (StopIteration, KaasError):
        return "it does not verify"
