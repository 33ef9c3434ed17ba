"""Artifact: one immutable file per kernel, and the only code that reads or writes its format.

Layout, little-endian::

    head      magic, format version, part count, file size, created (Unix s), compile seconds
    table     for each part: offset, stored size, decoded size, encoding, SHA-256 of the stored bytes
    checksum  SHA-256 of head and table
    parts     passport, metadata, (zeros up to a page boundary) image, source, log

Offsets follow from the sizes, the gap must be zeros and the file must end where the last part ends, so no
byte of a file lies outside some check. The passport part is the passport's canonical JSON, hence its digest
is the kernel's key. A reader takes a private copy in one read, which measured as fast as a mapping once every
byte is hashed; afterwards neither a replaced, truncated or overwritten file nor a failing disk can
change the bytes behind a live artifact or kill the process that holds it.

When it takes that copy depends on the file's mark. The store's owner verifies an artifact and sets the file's
modification time to the time of creation in its head (:func:`mark_verified`); whatever writes to the file
later moves that time. A file with its mark is opened by checking header and passport, and copied and verified
whole when a part of it is first needed; any other file at once.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import math
import os
import stat
import struct
from pathlib import Path
from typing import Any

import msgspec

from kaas.cache.held_file import HeldFile, may_hold, open_file, read_all
from kaas.proto.canonical import canonical_json
from kaas.proto.errors import ArtifactDamaged, CompileFailed, PermissionDenied, StoreUnavailable
from kaas.proto.launch import LaunchMetadata
from kaas.proto.passport import KernelKey, Passport

FORMAT_VERSION = 1
"""Raised with every change of the layout; other versions read as damaged, hence as a miss."""

MAGIC = b"KAASKRN\n"
PAGE_BYTES = 4096
PARTS = ("passport", "metadata", "image", "source", "log")

MIB = 1 << 20
MAX_PART_BYTES = {
    "passport": MIB,
    "metadata": MIB,
    "image": 256 * MIB,
    "source": 32 * MIB,
    "log": 4 * MIB,
}
"""Largest stored and decoded size of each part; a header claiming more is refused before any allocation."""

_HEAD = struct.Struct("<8sIIQdd")
_PART = struct.Struct("<QQQQ32s")
_HEAD_AND_PASSPORT = struct.Struct(_HEAD.format + _PART.format[1:])
_CHECKSUM_BYTES = 32
HEADER_BYTES = _HEAD.size + len(PARTS) * _PART.size + _CHECKSUM_BYTES
MAX_FILE_BYTES = HEADER_BYTES + PAGE_BYTES + sum(MAX_PART_BYTES.values())

_RAW = 0
_ZLIB = 1
_COMPRESS_ABOVE_BYTES = 4096

_FIRST_READ_BYTES = 8192
"""Of a marked file: header and passport of most kernels."""


class _Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The metadata part."""

    launch: LaunchMetadata
    choices: dict[str, Any]


class _Part(msgspec.Struct, frozen=True):
    offset: int
    stored_bytes: int
    decoded_bytes: int
    encoding: int
    digest: bytes


@functools.cache
def _decoder(record: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    """Made when first needed, which for a marked file is its first use: it costs as much as many opens."""
    return msgspec.json.Decoder(record)


class _Contents(msgspec.Struct, frozen=True):
    """A file's bytes, verified, and what is decoded of them."""

    data: bytes | None
    parts: dict[str, _Part]
    passport: Passport
    metadata: _Metadata
    created_unix: float
    compile_seconds: float


class Artifact:
    """One kernel: ``image`` is the device binary, ``source`` the Ascend C, ``log`` the compiler's.

    Every byte is checked before it is returned, and is the process's own from then on: it never changes.
    The properties raise :class:`ArtifactDamaged` or :class:`StoreUnavailable` only for artifacts of
    :func:`open_marked` that were not taken yet.
    """

    __slots__ = ("_contents", "_file", "_origin", "key", "size_bytes")

    def __init__(self, data: bytes, *, expected_key: str | None = None, origin: str = "artifact") -> None:
        self._origin = origin
        self._file: HeldFile | None = None
        self._contents: _Contents | None = _verified(data, expected_key, origin)
        self.size_bytes: int = len(data)
        self.key = KernelKey(self._contents.parts["passport"].digest.hex())

    @classmethod
    def marked(cls, file: HeldFile, key: str, origin: str) -> Artifact:
        """The artifact of a file that carries its mark and whose header and passport are ``key``'s."""
        self = cls.__new__(cls)
        self._origin = origin
        self._file = file
        self._contents = None
        self.size_bytes = file.size
        self.key = KernelKey(key)
        return self

    @property
    def is_taken(self) -> bool:
        """Whether the bytes are this process's own, and verified."""
        return self._file is None

    def take(self) -> None:
        """Read and verify a marked file, if that was not done; from then on its bytes are this process's own.

        Raises :class:`ArtifactDamaged` or :class:`StoreUnavailable`.
        """
        file = self._file
        if file is None:
            return
        try:
            contents = _verified(file.read(), self.key, self._origin)
        except (ArtifactDamaged, OSError) as error:
            if self._file is None:
                return  # another thread, or a signal handler in the middle of this, was luckier
            raise error if isinstance(error, ArtifactDamaged) else _open_error(self._origin, error) from None
        # Whoever comes second has verified the same kernel, and leaves what views may lie on already.
        if self._file is not None:
            self._contents = contents
            self._file = None  # the descriptor is closed when nobody reads it any more

    @property
    def passport(self) -> Passport:
        """Everything that decided the kernel's bytes."""
        return self._taken().passport

    @property
    def launch(self) -> LaunchMetadata:
        """Entry, grid, and the parameters in call order."""
        return self._taken().metadata.launch

    @property
    def choices(self) -> dict[str, Any]:
        """What the builder chose, JSON-able."""
        return self._taken().metadata.choices

    @property
    def created_unix(self) -> float:
        """When the kernel was made."""
        return self._taken().created_unix

    @property
    def compile_seconds(self) -> float:
        """How long that took."""
        return self._taken().compile_seconds

    @property
    def image(self) -> memoryview:
        """The device binary, read-only."""
        return self._stored("image")[1]

    @property
    def source(self) -> str:
        """The Ascend C source, decoded when asked for."""
        return self._text("source")

    @property
    def log(self) -> str:
        """The compile log, decoded when asked for."""
        return self._text("log")

    def close(self) -> None:
        """Let go of the bytes; views already taken stay valid. Closing twice is harmless."""
        self._file = None
        if self._contents is not None:
            self._contents = msgspec.structs.replace(self._contents, data=None)

    def __enter__(self) -> Artifact:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Artifact {self.key[:12]} {self.size_bytes} bytes>"

    def _taken(self) -> _Contents:
        self.take()
        contents = self._contents
        if contents is None:
            raise ValueError("the artifact is closed")
        return contents

    def _stored(self, name: str) -> tuple[_Part, memoryview]:
        contents = self._taken()
        if contents.data is None:
            raise ValueError("the artifact is closed")
        part = contents.parts[name]
        return part, _part_of(contents.data, part)

    def _text(self, name: str) -> str:
        part, stored = self._stored(name)
        content = bytes(stored) if part.encoding == _RAW else _inflate(stored, part, name, self._origin)
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise _damaged(self._origin, name, "it is not UTF-8") from None


def _verified(data: bytes, expected_key: str | None, origin: str) -> _Contents:
    created_unix, compile_seconds, parts = _verified_parts(data, origin)
    passport: Passport = _decoded_json(data, parts, "passport", Passport, origin)
    key = parts["passport"].digest.hex()
    if passport.key() != key:
        raise _damaged(origin, "passport", "the passport is not in canonical form")
    if expected_key is not None and key != expected_key:
        raise _damaged(origin, "passport", "it belongs to another kernel", expected=expected_key, found=key)
    metadata: _Metadata = _decoded_json(data, parts, "metadata", _Metadata, origin)
    return _Contents(data, parts, passport, metadata, created_unix, compile_seconds)


def _decoded_json(
    data: bytes, parts: dict[str, _Part], name: str, record: type[msgspec.Struct], origin: str
) -> Any:
    try:
        return _decoder(record).decode(_part_of(data, parts[name]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(origin, name, f"not what this version writes: {error}") from None


def open_marked(path: str, key: str) -> Artifact:
    """The artifact ``key`` at ``path``, for readers: verified whole before any of it is used.

    A file with its mark is verified when it is first needed, any other now. Raises what
    :func:`open_artifact` raises.
    """
    descriptor = _open(path)
    try:
        status = _marked_status(descriptor, key)
        if status is not None:
            has_room = may_hold()
            file = HeldFile(descriptor, path, status)
            descriptor = -1
            if not has_room:
                file.read_in()
            return Artifact.marked(file, key, path)
        return Artifact(_read_file(descriptor, path), expected_key=key, origin=path)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _marked_status(descriptor: int, key: str) -> os.stat_result | None:
    """Of the file, if it carries its mark and header and passport are ``key``'s."""
    try:
        status = os.fstat(descriptor)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode) or not HEADER_BYTES <= size <= MAX_FILE_BYTES:
            return None
        start = os.pread(descriptor, _FIRST_READ_BYTES, 0)
        head = _HEAD_AND_PASSPORT.unpack_from(start)
    except (OSError, struct.error):
        return None  # reading all of it says what is wrong
    offset, passport_bytes, digest = head[6], head[7], head[10]
    header_end = HEADER_BYTES - _CHECKSUM_BYTES
    is_known = (
        is_marked(status, head[4])
        and head[1] == FORMAT_VERSION
        and head[3] == size
        and hashlib.sha256(start[:header_end]).digest() == start[header_end:HEADER_BYTES]
        and digest.hex() == key
        and hashlib.sha256(start[offset : offset + passport_bytes]).digest() == digest
    )
    return status if is_known else None


def mark_verified(path: str | os.PathLike[str], created_unix: float) -> None:
    """Mark the file of an artifact that has just been verified. Raises ``OSError``.

    Only the file's owner can; whoever else opens it, or writes to it, cannot set that time again.
    """
    mark = _mark_ns(created_unix)
    os.utime(path, ns=(mark, mark), follow_symlinks=False)


def is_marked(status: os.stat_result, created_unix: float) -> bool:
    """Whether a file with this ``status`` carries the mark of an artifact of that time."""
    return status.st_mtime_ns == _mark_ns(created_unix)


def _mark_ns(created_unix: float) -> int:
    # Microseconds: what a float of seconds since 1970 holds exactly enough to give one number everywhere.
    return int(created_unix * 1e6) * 1000 if -1e12 < created_unix < 1e12 else -1


def open_artifact(path: str | os.PathLike[str], expected_key: str | None = None) -> Artifact:
    """Read and verify the artifact at ``path``; with ``expected_key`` it must be that kernel.

    Raises ``FileNotFoundError`` when there is none, :class:`ArtifactDamaged` naming the part that failed,
    :class:`PermissionDenied` when it may not be read, and :class:`StoreUnavailable` when this process or the
    file system cannot open files just now (which says nothing about the artifact).
    """
    origin = os.fspath(path)
    return Artifact(read_artifact_file(origin), expected_key=expected_key, origin=origin)


def encode_artifact(
    *,
    passport: Passport,
    launch: LaunchMetadata,
    choices: dict[str, Any],
    image: bytes,
    source: str,
    log: str,
    created_unix: float,
    compile_seconds: float,
) -> bytes:
    """The file of one kernel; equal input gives equal bytes. A log that is too long loses its middle.

    Raises :class:`CompileFailed` (stage ``package``) for an empty image or a part above its limit, and
    ``ValueError`` for numbers that are not finite.
    """
    if not image:
        raise CompileFailed("the compiler produced an empty binary", stage="package", deterministic=False)
    if not (math.isfinite(created_unix) and math.isfinite(compile_seconds)):
        raise ValueError("created_unix and compile_seconds must be finite")
    log_bytes = _shortened(log.encode("utf-8", "backslashreplace"), MAX_PART_BYTES["log"])
    contents = {
        "passport": (canonical_json(passport), _RAW),
        "metadata": (canonical_json(_Metadata(launch=launch, choices=choices)), _RAW),
        "image": (bytes(image), _RAW),
        "source": (source.encode("utf-8", "backslashreplace"), _ZLIB),
        "log": (log_bytes, _ZLIB),
    }
    table: list[_Part] = []
    body: list[bytes] = []
    end = HEADER_BYTES
    for name in PARTS:
        content, encoding = contents[name]
        if len(content) > MAX_PART_BYTES[name]:
            raise CompileFailed(
                f"the kernel's {name} has {len(content)} bytes; at most {MAX_PART_BYTES[name]} can be kept",
                stage="package",
                deterministic=True,
            )
        stored, encoding = _deflate(content) if encoding == _ZLIB else (content, _RAW)
        offset = _offset_of(name, end)
        body.append(bytes(offset - end) + stored)
        table.append(_Part(offset, len(stored), len(content), encoding, hashlib.sha256(stored).digest()))
        end = offset + len(stored)
    head = _HEAD.pack(MAGIC, FORMAT_VERSION, len(PARTS), end, created_unix, compile_seconds)
    header = head + b"".join(_PART.pack(*msgspec.structs.astuple(part)) for part in table)
    return b"".join((header, hashlib.sha256(header).digest(), *body))


def read_artifact_file(path: str) -> bytes:
    """What lies at ``path``, unverified; raises like :func:`open_artifact`."""
    descriptor = _open(path)
    try:
        return _read_file(descriptor, path)
    finally:
        os.close(descriptor)


def _open(path: str) -> int:
    try:
        return open_file(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _open_error(path, error) from None


def _read_file(descriptor: int, path: str) -> bytes:
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _damaged(path, "file", "it is not a regular file")
        if not HEADER_BYTES <= status.st_size <= MAX_FILE_BYTES:
            raise _damaged(path, "file", f"no artifact has {status.st_size} bytes")
        return read_all(descriptor, status.st_size)
    except OSError as error:
        raise _open_error(path, error) from None


def _open_error(path: str, error: OSError) -> ArtifactDamaged | PermissionDenied | StoreUnavailable:
    reason = error.strerror or str(error)
    if error.errno in (errno.EACCES, errno.EPERM):
        return PermissionDenied(f"{path} may not be read: {reason}", path=path)
    if error.errno in (errno.ELOOP, errno.EIO, errno.ENXIO, errno.ENODEV, errno.EISDIR):
        return _damaged(path, "file", reason)
    return StoreUnavailable(f"{path} cannot be read: {reason}", path=path, errno=error.errno)


def _offset_of(name: str, end: int) -> int:
    return -(-end // PAGE_BYTES) * PAGE_BYTES if name == "image" else end


def _verified_parts(data: bytes, origin: str) -> tuple[float, float, dict[str, _Part]]:
    if len(data) < HEADER_BYTES:
        raise _damaged(origin, "header", f"{len(data)} bytes are fewer than a header has")
    header, checksum = (
        data[: HEADER_BYTES - _CHECKSUM_BYTES],
        data[HEADER_BYTES - _CHECKSUM_BYTES : HEADER_BYTES],
    )
    magic, version, count, file_bytes, created_unix, compile_seconds = _HEAD.unpack_from(header)
    if magic != MAGIC:
        raise _damaged(origin, "header", "it does not start like an artifact")
    if (version, count) != (FORMAT_VERSION, len(PARTS)):
        raise _damaged(origin, "header", f"format {version} is not {FORMAT_VERSION}")
    if hashlib.sha256(header).digest() != checksum:
        raise _damaged(origin, "header", "its checksum differs")
    if file_bytes != len(data):
        raise _damaged(origin, "file", "its size differs", expected=file_bytes, found=len(data))
    parts: dict[str, _Part] = {}
    view, end = memoryview(data), HEADER_BYTES
    for number, name in enumerate(PARTS):
        part = _Part(*_PART.unpack_from(header, _HEAD.size + number * _PART.size))
        offset = _offset_of(name, end)
        if max(part.stored_bytes, part.decoded_bytes) > MAX_PART_BYTES[name]:
            raise _damaged(origin, name, "it claims to be larger than any artifact's")
        if part.offset != offset or offset + part.stored_bytes > len(data):
            raise _damaged(origin, name, "it does not lie where it should")
        if part.encoding not in (_RAW, _ZLIB) or (
            part.encoding == _RAW and part.stored_bytes != part.decoded_bytes
        ):
            raise _damaged(origin, name, "its encoding is unknown")
        if any(view[end:offset]):
            raise _damaged(origin, name, "the gap before it is not empty")
        end = offset + part.stored_bytes
        if hashlib.sha256(view[offset:end]).digest() != part.digest:
            raise _damaged(origin, name, "its SHA-256 differs")
        parts[name] = part
    if end != len(data):
        raise _damaged(origin, "file", "bytes follow the last part")
    if not parts["image"].stored_bytes:
        raise _damaged(origin, "image", "it is empty")
    if any(parts[name].encoding != _RAW for name in ("passport", "metadata", "image")):
        raise _damaged(origin, "header", "a part that is never compressed claims to be")
    return created_unix, compile_seconds, parts


def _part_of(data: bytes, part: _Part) -> memoryview:
    return memoryview(data)[part.offset : part.offset + part.stored_bytes]


def _deflate(content: bytes) -> tuple[bytes, int]:
    if len(content) <= _COMPRESS_ABOVE_BYTES:
        return content, _RAW
    import zlib

    compressed = zlib.compress(content, 6)
    return (compressed, _ZLIB) if len(compressed) < len(content) else (content, _RAW)


def _inflate(stored: memoryview, part: _Part, name: str, origin: str) -> bytes:
    import zlib

    stream = zlib.decompressobj()
    try:
        content = stream.decompress(stored, part.decoded_bytes + 1)
    except zlib.error as error:
        raise _damaged(origin, name, str(error)) from None
    if len(content) != part.decoded_bytes or not stream.eof or stream.unused_data:
        raise _damaged(origin, name, "it does not unpack to the size it claims")
    return content


def _shortened(text: bytes, limit: int) -> bytes:
    if len(text) <= limit:
        return text
    keep = (limit - 128) // 2
    head = text[:keep].decode("utf-8", "ignore").encode()
    tail = text[-keep:].decode("utf-8", "ignore").encode()
    return head + f"\n[... {len(text) - len(head) - len(tail)} bytes left out ...]\n".encode() + tail


def _damaged(origin: str, part: str, reason: str, **details: Any) -> ArtifactDamaged:
    name = Path(origin).name
    return ArtifactDamaged(f"{name}: {part}: {reason}", part=part, reason=reason, path=origin, **details)
