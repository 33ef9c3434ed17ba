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
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import stat
import struct
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

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
_CHECKSUM_BYTES = 32
HEADER_BYTES = _HEAD.size + len(PARTS) * _PART.size + _CHECKSUM_BYTES
MAX_FILE_BYTES = HEADER_BYTES + PAGE_BYTES + sum(MAX_PART_BYTES.values())

_RAW = 0
_ZLIB = 1
_COMPRESS_ABOVE_BYTES = 4096


class _Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The metadata part."""

    launch: LaunchMetadata
    choices: dict[str, Any]


class _Part(NamedTuple):
    offset: int
    stored_bytes: int
    decoded_bytes: int
    encoding: int
    digest: bytes


_PASSPORT_DECODER = msgspec.json.Decoder(Passport)
_METADATA_DECODER = msgspec.json.Decoder(_Metadata)


class Artifact:
    """One verified kernel: ``image`` is the device binary, ``source`` the Ascend C, ``log`` the compiler's.

    Every byte was checked when it was opened. Its bytes are the process's own and never change.
    """

    __slots__ = (
        "_data",
        "_origin",
        "_parts",
        "choices",
        "compile_seconds",
        "created_unix",
        "key",
        "launch",
        "passport",
        "size_bytes",
    )

    def __init__(self, data: bytes, *, expected_key: str | None = None, origin: str = "artifact") -> None:
        self._origin = origin
        self._data: bytes | None = data
        self.size_bytes: int = len(data)
        self.created_unix, self.compile_seconds, self._parts = _verified_parts(data, origin)
        self.passport: Passport = self._decoded_json("passport", _PASSPORT_DECODER)
        self.key: KernelKey = KernelKey(self._parts["passport"].digest.hex())
        if self.passport.key() != self.key:
            raise _damaged(origin, "passport", "the passport is not in canonical form")
        if expected_key is not None and self.key != expected_key:
            raise _damaged(
                origin, "passport", "it belongs to another kernel", expected=expected_key, found=self.key
            )
        metadata: _Metadata = self._decoded_json("metadata", _METADATA_DECODER)
        self.launch: LaunchMetadata = metadata.launch
        self.choices: dict[str, Any] = metadata.choices

    @property
    def image(self) -> memoryview:
        """The device binary, read-only."""
        return self._stored("image")

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
        self._data = None

    def __enter__(self) -> Artifact:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Artifact {self.key[:12]} {self.size_bytes} bytes>"

    def _stored(self, name: str) -> memoryview:
        if self._data is None:
            raise ValueError("the artifact is closed")
        part = self._parts[name]
        return memoryview(self._data)[part.offset : part.offset + part.stored_bytes]

    def _decoded_json(self, name: str, decoder: msgspec.json.Decoder[Any]) -> Any:
        try:
            return decoder.decode(self._stored(name))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _damaged(self._origin, name, f"not what this version writes: {error}") from None

    def _text(self, name: str) -> str:
        part, stored = self._parts[name], self._stored(name)
        content = bytes(stored) if part.encoding == _RAW else _inflate(stored, part, name, self._origin)
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise _damaged(self._origin, name, "it is not UTF-8") from None


def open_artifact(path: str | os.PathLike[str], expected_key: str | None = None) -> Artifact:
    """Read and verify the artifact at ``path``; with ``expected_key`` it must be that kernel.

    Raises ``FileNotFoundError`` when there is none, :class:`ArtifactDamaged` naming the part that failed,
    :class:`PermissionDenied` when it may not be read, and :class:`StoreUnavailable` when this process or the
    file system cannot open files just now (which says nothing about the artifact).
    """
    origin = os.fspath(path)
    return Artifact(_read_file(origin), expected_key=expected_key, origin=origin)


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
    header = head + b"".join(_PART.pack(*part) for part in table)
    return b"".join((header, hashlib.sha256(header).digest(), *body))


def _read_file(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _open_error(path, error) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _damaged(path, "file", "it is not a regular file")
        if not HEADER_BYTES <= status.st_size <= MAX_FILE_BYTES:
            raise _damaged(path, "file", f"no artifact has {status.st_size} bytes")
        chunks: list[bytes] = []
        wanted = status.st_size + 1
        while wanted and (chunk := os.read(descriptor, wanted)):
            chunks.append(chunk)
            wanted -= len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)
    except OSError as error:
        raise _open_error(path, error) from None
    finally:
        os.close(descriptor)


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
