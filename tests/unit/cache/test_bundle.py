"""Bundles: hostile ones are refused with their reason and nothing is written; good ones come back whole."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.bundle_drafts import Draft, digest, header, repacked

from kaas.cache import artifact as artifact_file
from kaas.cache import bundle as bundle_file
from kaas.cache import oci_records, plain_tar
from kaas.cache.artifact import MAX_FILE_BYTES, Artifact
from kaas.cache.bundle import Bundle, describe, signed_manifest, write_bundle
from kaas.cache.foreign_artifact import verify_foreign
from kaas.cache.signatures import SignaturePolicy, SigningKey, TrustList
from kaas.client.bundle_import import import_bundle
from kaas.proto.errors import BundleRefused, KaasError, SignatureRefused

ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")


def signing_key(seed: int) -> SigningKey:
    return SigningKey(ed25519.Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32))


OURS, STRANGER = signing_key(1), signing_key(2)
TRUST = TrustList({"release": OURS.public})
ANY = SignaturePolicy()
REQUIRED = SignaturePolicy(TRUST, required=True)

Spoil = Callable[[Draft], bytes | None]
"""Changes a draft; or gives the whole file."""


def extra(*headers: bytes) -> Spoil:
    def spoil(draft: Draft) -> None:
        draft.extra = [(one, b"") for one in headers]

    return spoil


def flipped(find: Callable[[Draft], bytes], at: int = 0) -> Spoil:
    """One bit of the byte ``at`` of something in the file."""

    def spoil(draft: Draft) -> bytes:
        data = bytearray(draft.pack())
        place = data.index(find(draft)) + at
        data[place] ^= 1
        return bytes(data)

    return spoil


def changed(**fields: Any) -> Spoil:
    def spoil(draft: Draft) -> None:
        for name, value in fields.items():
            setattr(draft, name, value)

    return spoil


def layer(number: int, **fields: Any) -> Spoil:
    def spoil(draft: Draft) -> None:
        draft.layers[number] |= fields

    return spoil


def file(number: int, make: Callable[[bytes], bytes]) -> Spoil:
    def spoil(draft: Draft) -> None:
        draft.replace(number, make(draft.files[draft.keys[number]]))

    return spoil


def whole(make: Callable[[bytes], bytes]) -> Spoil:
    return lambda draft: make(draft.pack())


def left_out(find: Callable[[Draft], str]) -> Spoil:
    def spoil(draft: Draft) -> None:
        draft.left_out = {find(draft)}

    return spoil


def swapped_keys(draft: Draft) -> None:
    first, second = draft.layers[0], draft.layers[1]
    first["annotations"], second["annotations"] = second["annotations"], first["annotations"]
    draft.layers[:2] = [second, first]


def same_kernel_twice(draft: Draft) -> None:
    draft.layers.append(dict(draft.layers[-1]))
    draft.facts.append(draft.facts[-1])


def other_listing(draft: Draft) -> None:
    draft.facts[1] = draft.facts[1] | {"soc_name": "Ascend950PR_958b"}


def other_spec_listed(draft: Draft) -> None:
    draft.facts[0] = draft.facts[0] | {"spec": {"family": "gemm", "n": 1, "k": 1}}


def other_passport(content: bytes) -> bytes:
    with Artifact(content) as artifact:
        passport = msgspec.structs.replace(artifact.passport, options=("-O0",))
    return repacked(content, passport=passport)


def bomb(content: bytes) -> bytes:
    """A source that claims a thousand bytes and unpacks to a hundred million."""
    plain = repacked(content, source="x" * 5000)
    head, part = artifact_file._HEAD, artifact_file._PART
    table = [
        list(part.unpack_from(plain, head.size + number * part.size))
        for number in range(len(artifact_file.PARTS))
    ]
    body = [plain[offset : offset + stored] for offset, stored, *_ in table]
    body[3] = zlib.compress(bytes(100_000_000), 9)
    table[3] = [table[3][0], len(body[3]), 1000, 1, hashlib.sha256(body[3]).digest()]
    table[4][0] = table[3][0] + len(body[3])
    fields = list(head.unpack_from(plain))
    fields[3] = table[4][0] + len(body[4])
    start = head.pack(*fields) + b"".join(part.pack(*one) for one in table)
    start += hashlib.sha256(start).digest()
    image_gap = bytes(table[2][0] - table[1][0] - table[1][1])
    return start + body[0] + body[1] + image_gap + body[2] + body[3] + body[4]


def claims_huge_part(content: bytes) -> bytes:
    head, part = artifact_file._HEAD, artifact_file._PART
    data = bytearray(content)
    place = head.size + 3 * part.size
    fields = list(part.unpack_from(data, place))
    fields[2] = 1 << 40
    part.pack_into(data, place, *fields)
    end = artifact_file.HEADER_BYTES - 32
    data[end : end + 32] = hashlib.sha256(data[:end]).digest()
    return bytes(data)


def pax_archive(draft: Draft) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in draft.entries():
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(content), {"path": f"/etc/{name}"}
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def signed_by_stranger(draft: Draft) -> None:
    for key, one in zip(draft.keys, draft.layers, strict=True):
        one["annotations"] |= {oci_records.SIGNATURES: STRANGER.sign(key, digest(draft.files[key]))}


def signed(draft: Draft, statement: Callable[[str, str], tuple[str, str]]) -> None:
    for key, one in zip(draft.keys, draft.layers, strict=True):
        claim = OURS.sign(*statement(key, digest(draft.files[key])))
        one["annotations"] |= {oci_records.SIGNATURES: claim}


def signatures(text: str) -> Spoil:
    def spoil(draft: Draft) -> None:
        for one in draft.layers:
            one["annotations"] |= {oci_records.SIGNATURES: text}

    return spoil


def first_file(draft: Draft) -> bytes:
    return draft.files[draft.keys[0]]


HOSTILE: dict[str, tuple[Spoil, str]] = {
    # paths
    "an absolute path": (extra(header(b"/etc/passwd")), "path_escape"),
    "a path that climbs": (extra(header(b"blobs/../../evil")), "path_escape"),
    "a climbing prefix": (extra(header(b"evil", prefix=b"../..")), "path_escape"),
    "a path with a backslash": (extra(header(b"..\\evil")), "path_escape"),
    "a name with a control character": (extra(header(b"evil\nname")), "path_escape"),
    "a name that is no ASCII": (extra(header("blöbs".encode())), "path_escape"),
    "a dot in a path": (extra(header(b"blobs/./x")), "path_escape"),
    # kinds of entries
    "a symbolic link": (extra(header(b"evil", kind=b"2", link=b"/etc/passwd")), "link"),
    "a hard link": (extra(header(b"evil", kind=b"1", link=b"index.json")), "link"),
    "a file that names a link": (extra(header(b"evil", link=b"/etc/passwd")), "link"),
    "a character device": (extra(header(b"evil", kind=b"3")), "device"),
    "a block device": (extra(header(b"evil", kind=b"4")), "device"),
    "a pipe": (extra(header(b"evil", kind=b"6")), "device"),
    "a sparse file": (extra(header(b"evil", kind=b"S")), "extended_header"),
    "a GNU long name": (extra(header(b"././@LongLink", kind=b"L")), "path_escape"),
    "a long name under another one": (extra(header(b"name", kind=b"L")), "extended_header"),
    "extended headers that rename": (pax_archive, "path_escape"),
    "a global extended header": (extra(header(b"pax", kind=b"g")), "extended_header"),
    "an unknown kind of entry": (extra(header(b"evil", kind=b"Z")), "malformed"),
    "a foreign directory": (extra(header(b"etc/", kind=b"5")), "foreign"),
    # foreign and doubled entries, too many of them
    "a foreign file": (extra(header(b"readme.txt")), "foreign"),
    "a blob of no layer": (extra(header(b"blobs/sha256/" + b"0" * 64)), "foreign"),
    "an entry twice": (extra(header(b"index.json")), "duplicate"),
    "a kernel twice": (same_kernel_twice, "duplicate"),
    "too many entries": (extra(*(header(b"blobs/sha256/%064x" % number) for number in range(9))), "too_many"),
    "kernels out of order": (lambda draft: draft.layers.reverse(), "malformed"),
    # sizes and bombs
    "compressed with gzip": (whole(lambda data: gzip.compress(data)), "compressed"),
    "a size beyond the file": (extra(header(b"evil", size=1 << 30)), "truncated"),
    "a layer larger than any artifact": (layer(0, size=MAX_FILE_BYTES + 1), "too_large"),
    "a negative size": (layer(0, size=-1), "too_large"),
    "a manifest larger than any": (changed(entry_changes={"size": 1 << 40}), "too_large"),
    "a huge oci-layout": (changed(layout=b" " * 100_000), "too_large"),
    "a part that unpacks to a hundred megabytes": (file(0, bomb), "artifact"),
    "a part that claims a terabyte": (file(0, claims_huge_part), "artifact"),
    "records nested without end": (changed(layout=b"[" * 60_000), "malformed"),
    # truncated, appended
    "empty": (whole(lambda data: b""), "truncated"),
    "a hundred bytes": (whole(lambda data: data[:100]), "malformed"),
    "cut within a blob": (whole(lambda data: data[:6000]), "truncated"),
    "cut before the end mark": (whole(lambda data: data[:-1024]), "truncated"),
    "cut within the end mark": (whole(lambda data: data[:-512]), "truncated"),
    "bytes after the end": (whole(lambda data: data + b"x"), "trailing"),
    "zeros without end": (whole(lambda data: data + bytes(20_000)), "trailing"),
    "no tar file": (whole(lambda data: b"#!/bin/sh\n" * 200), "malformed"),
    # altered bytes
    "an altered byte of a kernel": (flipped(first_file, 4096), "digest"),
    "an altered byte of the config": (flipped(lambda draft: draft.config(), 30), "digest"),
    "an altered byte of the manifest": (flipped(lambda draft: draft.manifest(draft.config()), 30), "digest"),
    "an altered byte of a header": (flipped(lambda draft: b"oci-layout", 1), "malformed"),
    "an altered byte of a gap": (flipped(first_file, 512 * 9 - 20), "malformed"),
    "an altered byte within, its digest put right": (file(0, lambda data: data[:-1] + b"\xff"), "artifact"),
    "a kernel cut short, its digest put right": (file(0, lambda data: data[:-1]), "artifact"),
    "a layer that is no artifact": (file(0, lambda data: b"\x7fELF" + bytes(5000)), "artifact"),
    # digests
    "a wrong digest of a layer": (layer(0, digest="sha256:" + "0" * 64), "missing"),
    "a wrong digest of the manifest": (changed(entry_changes={"digest": "sha256:" + "0" * 64}), "missing"),
    "a digest of another kind": (layer(0, digest="md5:" + "0" * 32), "malformed"),
    "a digest that is a path": (layer(0, digest="sha256:../../../etc/passwd"), "malformed"),
    "a wrong size of a layer": (layer(0, size=77), "size"),
    "a kernel's blob left out": (
        left_out(lambda draft: f"blobs/sha256/{digest(first_file(draft))}"),
        "missing",
    ),
    "no index": (left_out(lambda draft: "index.json"), "missing"),
    "no oci-layout": (left_out(lambda draft: "oci-layout"), "missing"),
    # passports
    "another passport": (file(0, other_passport), "passport"),
    "two kernels with each other's keys": (swapped_keys, "passport"),
    "a listing with another target": (other_listing, "passport"),
    "a listing with another spec": (other_spec_listed, "passport"),
    "a listing of fewer kernels": (lambda draft: draft.facts.pop() and None, "malformed"),
    # records
    "another version of the format": (changed(format_version=2), "malformed"),
    "another kind of image": (changed(manifest_changes={"artifactType": "application/x"}), "malformed"),
    "an unknown field": (changed(manifest_changes={"subject": {}}), "malformed"),
    "two manifests": (changed(index_changes={"manifests": []}), "malformed"),
    "a layer of another kind": (layer(0, mediaType="application/vnd.oci.image.layer.v1.tar"), "foreign"),
    "a layer with another name": (
        layer(0, annotations={oci_records.TITLE: "../../evil.kernel"}),
        "foreign",
    ),
    "an unknown annotation": (
        lambda draft: draft.layers[0]["annotations"].update({"x": "y"}),
        "malformed",
    ),
    # signatures
    "unsigned": (lambda draft: None, "unsigned"),
    "signed by a stranger": (signed_by_stranger, "foreign"),
    "a signature of other bytes": (
        lambda draft: signed(draft, lambda key, sha: (key, "0" * 64)),
        "altered",
    ),
    "a signature of another kernel": (
        lambda draft: signed(draft, lambda key, sha: ("0" * 64, sha)),
        "altered",
    ),
    "a signature that is none": (signatures("release:AAAA"), "malformed"),
    "more signatures than anybody reads": (
        signatures(",".join(["0" * 16 + ":" + "A" * 86 + "=="] * 9)),
        "malformed",
    ),
    "one signer twice": (signatures(",".join(["0" * 16 + ":" + "A" * 86 + "=="] * 2)), "malformed"),
}
SIGNED_CASES = list(HOSTILE)[list(HOSTILE).index("unsigned") :]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafts")


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_bundle_is_refused_with_its_reason_and_nothing_is_written(
    case: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_file, "_MOST_ENTRIES", 12)
    spoil, reason = HOSTILE[case]
    policy = REQUIRED if case in SIGNED_CASES else ANY
    draft = Draft(folder)
    data = spoil(draft)
    path = tmp_path / "hostile.tar"
    path.write_bytes(data if isinstance(data, bytes) else draft.pack())
    before = files_below(tmp_path)

    def take() -> None:
        with Bundle.open(path) as bundle:
            import_bundle(bundle, tmp_path / "store", tmp_path / "no.sock", policy)

    with pytest.raises((BundleRefused, SignatureRefused)) as refusal:
        take()
    assert refusal.value.details["reason"] == reason
    assert isinstance(refusal.value, SignatureRefused) == (case in SIGNED_CASES)
    assert files_below(tmp_path) == before


def test_a_signature_that_claims_a_trusted_key_and_is_not_its_is_refused_though_none_is_required(
    folder: Path, tmp_path: Path
) -> None:
    draft = Draft(folder)
    signed(draft, lambda key, sha: (key, "0" * 64))
    (tmp_path / "bundle").write_bytes(draft.pack())
    with Bundle.open(tmp_path / "bundle") as bundle:
        with pytest.raises(SignatureRefused, match="release"):
            list(bundle.verify(SignaturePolicy(TRUST)))
        assert len(list(bundle.verify(ANY))) == 3


@pytest.mark.parametrize("what", ["a directory", "a pipe", "nothing"])
def test_what_is_no_file_is_no_bundle(what: str, tmp_path: Path) -> None:
    import os

    path = tmp_path / "bundle"
    if what == "a directory":
        path.mkdir()
    elif what == "a pipe":
        os.mkfifo(path)
    with pytest.raises(BundleRefused) as refusal:
        Bundle.open(path)
    assert refusal.value.details["reason"] == "unreadable"


def test_the_draft_itself_is_a_good_bundle_and_says_who_signed(folder: Path, tmp_path: Path) -> None:
    draft = Draft(folder, OURS)
    (tmp_path / "bundle").write_bytes(draft.pack())
    with Bundle.open(tmp_path / "bundle") as bundle:
        assert [layer.key for layer in bundle.layers] == draft.keys
        assert {verified.signer for _, verified in bundle.verify(REQUIRED)} == {"release"}
        assert [bundle.read(layer) for layer in bundle.layers] == list(draft.files.values())


def written(draft: Draft, path: Path, key: SigningKey | None = None) -> bytes:
    artifacts = ((key_, data, verify_foreign(data, key=key_)) for key_, data in draft.files.items())
    manifest, config = describe(artifacts, key)
    write_bundle(path, manifest, config, lambda one: draft.files[one.key])
    return path.read_bytes()


def test_equal_kernels_give_equal_bytes_signed_or_not(folder: Path, tmp_path: Path) -> None:
    draft = Draft(folder)
    for key in (None, OURS):
        assert written(draft, tmp_path / "one", key) == written(draft, tmp_path / "two", key)


def test_other_tools_read_what_is_written_and_it_names_no_path_time_or_owner(
    folder: Path, tmp_path: Path
) -> None:
    draft = Draft(folder)
    data = written(draft, tmp_path / "bundle.tar")
    with tarfile.open(tmp_path / "bundle.tar") as archive:
        members = archive.getmembers()
        assert all(member.isreg() and member.mode == 0o644 for member in members)
        assert {(one.mtime, one.uid, one.gid, one.uname, one.gname) for one in members} == {(0, 0, 0, "", "")}
        blobs = [one for one in members if one.name.startswith("blobs/sha256/")]
        assert [one.name for one in blobs] == sorted(one.name for one in blobs)
        for member in blobs:
            extracted = archive.extractfile(member)
            assert extracted is not None
            assert digest(extracted.read()) == member.name.removeprefix("blobs/sha256/")
    assert str(tmp_path).encode() not in data


def test_what_another_tool_packs_with_directories_and_padding_is_read(folder: Path, tmp_path: Path) -> None:
    draft = Draft(folder)
    with tarfile.open(tmp_path / "bundle.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for name in ("blobs/", "blobs/sha256/"):
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE
            archive.addfile(info)
        for name, content in reversed(draft.entries()):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    with Bundle.open(tmp_path / "bundle.tar") as bundle:
        assert len(list(bundle.verify())) == 3


def test_signing_again_adds_a_signature_and_keeps_the_kernels(folder: Path, tmp_path: Path) -> None:
    draft = Draft(folder)
    written(draft, tmp_path / "one", STRANGER)
    with Bundle.open(tmp_path / "one") as bundle:
        write_bundle(tmp_path / "two", signed_manifest(bundle, OURS), bundle.config, bundle.read)
    with Bundle.open(tmp_path / "two") as bundle:
        assert {verified.signer for _, verified in bundle.verify(REQUIRED)} == {"release"}
        assert {layer.signatures.count(":") for layer in bundle.layers} == {2}
        assert [layer.key for layer in bundle.layers] == draft.keys


def test_a_kernel_that_changes_while_the_bundle_is_written_leaves_no_file(
    folder: Path, tmp_path: Path
) -> None:
    draft = Draft(folder)
    artifacts = ((key, data, verify_foreign(data, key=key)) for key, data in draft.files.items())
    manifest, config = describe(artifacts)
    with pytest.raises(BundleRefused):
        write_bundle(tmp_path / "bundle", manifest, config, lambda one: b"other bytes")
    assert files_below(tmp_path) == set()


def test_more_kernels_than_a_manifest_holds_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oci_records, "MAX_KERNELS", 2)
    with pytest.raises(KaasError, match="do not fit into one bundle"):
        written(Draft(folder), tmp_path / "bundle")


def test_a_full_bundle_with_two_signatures_a_kernel_stays_below_what_registries_take() -> None:
    two = ",".join(signer.sign("0" * 64, "0" * 64) for signer in (OURS, STRANGER))
    layers = [
        oci_records.Layer(key=f"{n:064x}", sha256=f"{n:064x}", size_bytes=MAX_FILE_BYTES, signatures=two)
        for n in range(oci_records.MAX_KERNELS)
    ]
    assert len(oci_records.encode_manifest(b"{}", layers)) <= oci_records.MAX_MANIFEST_BYTES


def test_headers_are_those_of_the_standard_library() -> None:
    info = tarfile.TarInfo("blobs/sha256/" + "a" * 64)
    info.size = 12345
    assert plain_tar.header(info.name, info.size) == info.tobuf(tarfile.USTAR_FORMAT)


def test_whichever_byte_is_altered_the_bundle_is_refused(folder: Path, tmp_path: Path) -> None:
    data = Draft(folder, OURS).pack()
    for place in range(0, len(data), 89):
        altered = bytearray(data)
        altered[place] ^= 0x10
        (tmp_path / "altered").write_bytes(altered)
        with pytest.raises((BundleRefused, SignatureRefused)), Bundle.open(tmp_path / "altered") as bundle:
            list(bundle.verify(REQUIRED))
