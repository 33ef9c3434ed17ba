"""Mounts: which file system a directory lies on, and whether a store may."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

NETWORK_TYPES = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb3",
        "smbfs",
        "wekafs",
    }
)
"""Kernel names of file systems that several machines write to."""

_NETWORK_FUSE = re.compile(
    r"fuse\.(sshfs|s3fs|goofys|gcsfuse|rclone|juicefs|glusterfs|ceph|cephfs|ceph-fuse|3fs|hf3fs\S*|obsfs|nfs\S*|lustre)",
    re.IGNORECASE,
)
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """One mounted file system: where, what kind (``ext4``, ``fuse.sshfs`` ...), from where, and options."""

    point: str
    type: str
    source: str
    options: frozenset[str]

    @property
    def is_network(self) -> bool:
        """Whether other machines may write to it, too."""
        return self.type in NETWORK_TYPES or _NETWORK_FUSE.fullmatch(self.type) is not None

    @property
    def is_noexec(self) -> bool:
        """Whether nothing on it may be mapped for execution."""
        return "noexec" in self.options


def parse_mounts(text: str) -> Iterator[Mount]:
    """The lines of ``/proc/self/mountinfo`` (proc_pid_mountinfo(5)) that can be understood."""
    for line in text.splitlines():
        mounted, separator, device = line.partition(" - ")
        fields, of_device = mounted.split(" "), device.split(" ")
        if separator and len(fields) >= 6 and len(of_device) >= 2:
            super_options = of_device[2] if len(of_device) > 2 else ""
            yield Mount(
                point=_unescaped(fields[4]),
                type=of_device[0],
                source=_unescaped(of_device[1]),
                options=frozenset([*fields[5].split(","), *super_options.split(",")]),
            )


def mount_of(directory: Path, text: str | None = None) -> Mount | None:
    """The mount that ``directory`` (there or not) lies on; ``None`` when the kernel does not tell.

    ``text`` is that of ``/proc/self/mountinfo`` by default. The last mount on a point hides earlier ones.
    """
    if text is None:
        try:
            text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            return None
    real = os.path.realpath(directory)
    best: Mount | None = None
    for mount in parse_mounts(text):
        point = mount.point.rstrip("/")
        if (real == point or real.startswith(point + "/")) and (
            best is None or len(mount.point) >= len(best.point)
        ):
            best = mount
    return best


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match.group(1), 8)), text)
