"""Plain tar: the strict subset of ustar that bundles use, and nothing else that a tar can hold.

Regular files with short names, and directories which are passed over; links, devices, sparse files, long
names and extended headers are refused by type, so none of their traps (paths that escape, sizes that a later
header overrides) exist here. Nothing is ever unpacked to a path that an archive names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from kaas.cache.oci_records import refused

BLOCK = 512
MAX_PADDING_BYTES = 10240
"""Of zeros after the end; other tools fill up to a record of 20 blocks."""

_REFUSED_TYPES = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"7": "a contiguous file",
    b"x": "an extended header",
    b"g": "an extended header",
    b"L": "a long name",
    b"K": "a long link name",
    b"S": "a sparse file",
}
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
}


class Member(NamedTuple):
    """A regular file in a tar: where its bytes lie."""

    name: str
    offset: int
    size: int


def header(name: str, size: int) -> bytes:
    """The header of a regular file: no time, no owner, mode 0644."""
    encoded = name.encode("ascii")
    if len(encoded) > 99 or size >= 8**11:
        raise ValueError(f"{name} ({size} bytes) does not fit into a plain tar")
    fields = [
        encoded.ljust(100, b"\0"),
        b"0000644\0",
        b"0000000\0",
        b"0000000\0",
        b"%011o\0" % size,
        b"00000000000\0",
        b" " * 8,
        b"0",
        bytes(100),
        b"ustar\x0000",
    ]
    block = bytearray(b"".join(fields).ljust(BLOCK, b"\0"))
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padding(size: int) -> bytes:
    """Zeros from the end of a file's bytes to the next header."""
    return bytes(-size % BLOCK)


END = bytes(2 * BLOCK)


def members(file: BinaryIO, *, directories: frozenset[str], most: int) -> Iterator[Member]:
    """The regular files of a tar, in order; only headers are read. ``directories`` may occur.

    Raises :class:`BundleRefused`.
    """
    total = os.fstat(file.fileno()).st_size
    position, count = 0, 0
    seen: set[str] = set()
    while True:
        block = _block(file, position, total)
        if position == 0:
            _refuse_compressed(block)
        if not any(block):
            _check_end(file, position, total)
            return
        count += 1
        if count > most:
            raise refused("too_many", f"more than {most} entries")
        name, kind, size = _parsed(block)
        if name in seen:
            raise refused("duplicate", f"the entry {name!r} is there twice", name)
        seen.add(name)
        position += BLOCK
        if kind == b"5":
            if name.rstrip("/") not in directories or size:
                raise refused("foreign", f"the directory {name!r} does not belong there", name)
            continue
        if position + size > total:
            raise refused("truncated", f"{name!r} ends before its {size} bytes do", name)
        yield Member(name, position, size)
        position += size
        fill = -size % BLOCK
        if any(os.pread(file.fileno(), fill, position)):
            raise refused("malformed", f"the gap after {name!r} is not empty", name)
        position += fill


def _block(file: BinaryIO, position: int, total: int) -> bytes:
    if position >= total:
        raise refused("truncated", "it ends without an end mark" if total else "it is empty")
    block = os.pread(file.fileno(), BLOCK, position)
    if len(block) < BLOCK:
        if position == 0:
            raise refused("malformed", "it is not a tar file")
        raise refused("truncated", "it ends within a header")
    return block


def _parsed(block: bytes) -> tuple[str, bytes, int]:
    if block[148:156] != b"%06o\0 " % (sum(block[:148]) + 8 * 32 + sum(block[156:])):
        raise refused("malformed", "it is not a tar file, or a header was altered")
    raw_name = block[:100].rstrip(b"\0")
    if not block[257:263] == b"ustar\0":
        raise refused("malformed", "it is not a tar file in ustar format")
    if any(block[345:500]):
        raw_name = block[345:500].rstrip(b"\0") + b"/" + raw_name
    shown = raw_name[:80].decode("ascii", "backslashreplace")
    _refuse_path(raw_name, shown)
    kind = block[156:157]
    if kind in _REFUSED_TYPES:
        reason = "link" if kind in b"12" else "device" if kind in b"346" else "extended_header"
        raise refused(reason, f"{shown!r} is {_REFUSED_TYPES[kind]}", shown)
    if kind not in (b"0", b"\0", b"5"):
        raise refused("malformed", f"{shown!r} is of the unknown type {kind!r}", shown)
    if any(block[157:257]):
        raise refused("link", f"{shown!r} is a file and names a link", shown)
    size = _octal(block[124:136])
    if size is None:
        raise refused("malformed", f"{shown!r} has no size", shown)
    return raw_name.decode("ascii"), kind, size


def _refuse_path(name: bytes, shown: str) -> None:
    if not name or not name.isascii() or any(byte < 32 or byte == 127 for byte in name):
        raise refused("path_escape", f"the name {shown!r} is not plain text", shown)
    text = name.decode("ascii")
    if text.startswith("/") or "\\" in text or any(part in ("", ".", "..") for part in text[:-1].split("/")):
        raise refused("path_escape", f"the name {shown!r} leads out of the bundle", shown)


def _octal(field: bytes) -> int | None:
    digits = field.strip(b" \0")
    if not digits or not all(byte in b"01234567" for byte in digits):
        return None
    return int(digits, 8)


def _check_end(file: BinaryIO, position: int, total: int) -> None:
    rest = total - position
    if rest < len(END):
        raise refused("truncated", "its end mark is not whole")
    if rest > len(END) + MAX_PADDING_BYTES:
        raise refused("trailing", f"{rest - len(END)} bytes follow its end")
    if any(os.pread(file.fileno(), rest, position)):
        raise refused("trailing", "bytes follow its end")


def _refuse_compressed(start: bytes) -> None:
    for magic, name in _COMPRESSED.items():
        if start.startswith(magic):
            raise refused("compressed", f"it is compressed ({name}); a bundle never is")
