"""Which file system a directory lies on, from the kernel's own table."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaas.cache import placement
from kaas.cache.mounts import mount_of, parse_mounts
from kaas.proto.errors import StoreUnavailable

TABLE = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:20 / /tmp rw,nosuid,noexec - tmpfs tmpfs rw,size=1024k
24 22 0:40 / /shared rw,relatime shared:7 master:2 - nfs4 filer:/export rw,vers=4.2,local_lock=none
25 22 0:41 / /mnt/with\040space rw - fuse.sshfs user@host:/ rw
26 22 0:42 / /lustre rw - lustre 10.0.0.1@tcp:/fs rw,flock
27 22 0:43 / /shared/local rw - xfs /dev/nvme0n1 rw
28 22 0:44 / /fuse rw - fuse.fuse-overlayfs fuse-overlayfs rw
nonsense
29 22 0:45 /
"""


@pytest.mark.parametrize(
    ("directory", "type_", "is_network"),
    [
        ("/", "ext4", False),
        ("/home/user/.cache", "ext4", False),
        ("/sharedlike", "ext4", False),
        ("/shared", "nfs4", True),
        ("/shared/users/me", "nfs4", True),
        ("/shared/local/store", "xfs", False),
        ("/mnt/with space/store", "fuse.sshfs", True),
        ("/lustre/store", "lustre", True),
        ("/fuse/store", "fuse.fuse-overlayfs", False),
    ],
)
def test_the_deepest_mount_counts(directory: str, type_: str, is_network: bool) -> None:
    mount = mount_of(Path(directory), TABLE)
    assert mount is not None
    assert (mount.type, mount.is_network) == (type_, is_network)


def test_the_last_of_two_mounts_on_one_point_counts() -> None:
    hidden = TABLE + "30 22 0:50 / /shared rw - tmpfs tmpfs rw\n"
    mount = mount_of(Path("/shared/x"), hidden)
    assert mount is not None
    assert mount.type == "tmpfs"


def test_options_of_mount_and_file_system_count() -> None:
    of = {mount.point: mount for mount in parse_mounts(TABLE)}
    assert len(of) == 7
    assert of["/tmp"].is_noexec
    assert not of["/"].is_noexec
    assert "flock" in of["/lustre"].options
    assert of["/shared"].source == "filer:/export"


def test_what_the_kernel_does_not_tell_is_not_made_up() -> None:
    assert mount_of(Path("/anywhere"), "") is None


def test_this_machine_has_a_root() -> None:
    mount = mount_of(Path("/"))
    assert mount is None or mount.point == "/"


def test_a_store_on_a_network_file_system_is_refused_unless_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n23 22 0:9 / {tmp_path} rw - nfs4 filer:/x rw\n"
    monkeypatch.setattr(placement, "mount_of", lambda path: mount_of(path, table))
    with pytest.raises(StoreUnavailable) as refused:
        placement.prepare_root(tmp_path / "store")
    assert refused.value.details["file_system"] == "nfs4"
    assert "allow_network_fs" in (refused.value.hint or "")
    assert not (tmp_path / "store").exists()
    placement.prepare_root(tmp_path / "store", allow_network_fs=True)
    assert "network file system" in caplog.text
