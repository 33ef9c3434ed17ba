"""``kaas bundle create``, ``inspect``, ``verify``, ``sign``, ``import``, ``push``, ``pull``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from kaas.client.kernel_listing import size_text
from kaas.client.terminal import guarded, print_fields, print_json, print_table
from kaas.proto.errors import InvalidRequest
from kaas.proto.locations import default_socket, default_store

if TYPE_CHECKING:
    from kaas.cache.oci_records import KernelFacts, Layer
    from kaas.cache.signatures import SignaturePolicy

File = Annotated[Path, typer.Argument(help="A bundle file.", show_default=False)]
Place = Annotated[
    str,
    typer.Argument(
        help="HOST[:PORT]/REPOSITORY[:TAG], or ...@sha256:DIGEST, of an OCI registry.", show_default=False
    ),
]
Store = Annotated[
    Path | None, typer.Option("--store", envvar="KAAS_STORE", help="The node's store.", show_default=False)
]
Trust = Annotated[
    Path | None,
    typer.Option(
        "--trust-list",
        envvar="KAAS_TRUST_LIST",
        help="TOML file with the public keys whose signatures count.",
        show_default=False,
    ),
]
Require = Annotated[
    bool,
    typer.Option(
        "--require-signature",
        envvar="KAAS_REQUIRE_SIGNATURE",
        help="Refuse kernels that nobody on the trust list signed.",
    ),
]
Sign = Annotated[
    Path | None,
    typer.Option("--sign", help="Sign with this Ed25519 private key (PEM).", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]


def add_bundle_commands(app: typer.Typer) -> None:
    """Hang the commands into the command line."""
    group = typer.Typer(
        name="bundle",
        help="Many kernels as one file, for nodes without a network or through an OCI registry.",
        no_args_is_help=True,
    )
    for command in (create, inspect, verify, sign, push, pull):
        group.command()(guarded(command))
    group.command("import")(guarded(import_))
    app.add_typer(group)


def create(
    file: File,
    keys: Annotated[
        list[str] | None,
        typer.Argument(help="Keys, or their first digits (6 or more).", show_default=False),
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option("--manifest", help="All kernels of this file, YAML or JSON; - is standard input."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything that the store holds.")] = False,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Leave out what is not in the store.")
    ] = False,
    sign: Sign = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Write kernels of the store into one file; equal kernels give equal bytes."""
    from kaas.cache.signatures import read_signing_key
    from kaas.client.bundle_contents import create_bundle, keys_of_manifest, keys_of_prefixes, stored_keys

    if bool(keys) + (manifest is not None) + everything != 1:
        raise InvalidRequest(
            "which kernels is not clear", field="keys", legal="keys, --manifest FILE or --all: one of them"
        )
    root = store or default_store()
    if manifest is not None:
        wanted = keys_of_manifest(root, manifest)
    else:
        found = stored_keys(root) if everything else keys_of_prefixes(root, keys or ())
        wanted = dict.fromkeys(found, "by key")
    signing_key = read_signing_key(sign) if sign else None
    count, missing = create_bundle(file, root, wanted, allow_missing=allow_missing, signing_key=signing_key)
    facts: dict[str, Any] = {"file": str(file), "kernels": count, "size_bytes": file.stat().st_size}
    facts["missing"] = [one._asdict() for one in missing]
    if json:
        print_json(facts)
        return
    for one in missing:
        print(f"missing: {one.key[:12]} ({one.wanted_by})")
    print(f"{file}: {count} kernels, {size_text(facts['size_bytes'])}" + _signed_by(signing_key))


def inspect(
    bundle: Annotated[
        str, typer.Argument(help="A bundle file, or its place in a registry.", show_default=False)
    ],
    json: Json = False,
) -> None:
    """List what a bundle says that it holds; from a registry, no kernel is fetched for it."""
    from kaas.cache.bundle import Bundle
    from kaas.cache.oci_records import sha256
    from kaas.client.bundle_transfer import read_listing
    from kaas.client.oci_registry import Registry, parse_reference

    if Path(bundle).exists():
        with Bundle.open(Path(bundle)) as opened:
            digest, layers, kernels = opened.digest, opened.layers, opened.kernels
    else:
        with Registry(parse_reference(bundle)) as registry:
            listing = read_listing(registry)
        digest, layers, kernels = sha256(listing.manifest), listing.layers, listing.kernels
    _show(digest, layers, kernels, json)


def verify(
    file: File, trust_list: Trust = None, require_signature: Require = False, json: Json = False
) -> None:
    """Check every byte of a bundle, each kernel's passport, and signatures as far as the policy asks."""
    from kaas.cache.bundle import Bundle

    policy = _policy(trust_list, require_signature)
    signers: dict[str, int] = {}
    with Bundle.open(file) as bundle:
        for _, verified in bundle.verify(policy):
            signers[verified.signer] = signers.get(verified.signer, 0) + 1
        facts = {
            "digest": f"sha256:{bundle.digest}",
            "kernels": len(bundle.layers),
            "size_bytes": bundle.size_bytes,
            "signed_by": {name: count for name, count in sorted(signers.items()) if name},
        }
    if json:
        print_json(facts)
        return
    print(f"{file}: {facts['kernels']} kernels, all of them whole")
    for name, count in facts["signed_by"].items():  # type: ignore[attr-defined]
        print(f"signed by {name}: {count}")


def sign(
    file: File,
    output: Annotated[Path, typer.Argument(help="The signed bundle.", show_default=False)],
    key: Annotated[Path, typer.Option("--key", help="An Ed25519 private key (PEM).", show_default=False)],
    json: Json = False,
) -> None:
    """Verify a bundle and write it again with a signature of each kernel; those that it has stay."""
    from kaas.cache.bundle import Bundle, signed_manifest, write_bundle
    from kaas.cache.signatures import read_signing_key

    signing_key = read_signing_key(key)
    with Bundle.open(file) as bundle:
        for _ in bundle.verify():
            pass
        write_bundle(output, signed_manifest(bundle, signing_key), bundle.config, bundle.read)
        count = len(bundle.layers)
    if json:
        facts = {"file": str(output), "kernels": count, "key_id": signing_key.id}
        print_json(facts | {"trust_list_value": signing_key.trust_list_value})
        return
    print(f"{output}: {count} kernels" + _signed_by(signing_key))


def import_(
    file: File,
    trust_list: Trust = None,
    require_signature: Require = False,
    store: Store = None,
    socket: Annotated[
        Path | None,
        typer.Option("--socket", envvar="KAAS_SOCKET", help="The daemon's socket.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Verify a bundle whole, then publish its kernels, through the daemon or, while none runs, without."""
    from kaas.cache.bundle import Bundle
    from kaas.client.bundle_import import import_bundle

    policy = _policy(trust_list, require_signature)
    with Bundle.open(file) as bundle:
        done = import_bundle(bundle, store or default_store(), socket or default_socket(), policy)
    if json:
        print_json(done._asdict())
        return
    print(f"{done.added} kernels added, {done.present} were there ({done.way})")
    if done.here is not None:
        print(f"{done.here} of them were made by the toolchain that this node has")


def push(file: File, place: Place, json: Json = False) -> None:
    """Upload a bundle to an OCI registry; kernels that the repository has are not sent again."""
    from kaas.cache.bundle import Bundle
    from kaas.client.bundle_transfer import push_bundle
    from kaas.client.oci_registry import parse_reference

    reference = parse_reference(place)
    if ":" in reference.name:
        raise InvalidRequest("a push goes to a tag", field="place", legal="HOST[:PORT]/REPOSITORY:TAG")
    with Bundle.open(file) as bundle:
        for _ in bundle.verify():
            pass
        pushed = push_bundle(bundle, reference)
        count = len(bundle.layers)
    if json:
        print_json({"place": str(reference), "kernels": count} | pushed._asdict())
        return
    print(f"{reference}: {pushed.digest}")
    print(f"{count} kernels, {pushed.sent} of them sent ({size_text(pushed.sent_bytes)})")


def pull(
    place: Place,
    file: Annotated[Path, typer.Argument(help="The file to write.", show_default=False)],
    trust_list: Trust = None,
    require_signature: Require = False,
    json: Json = False,
) -> None:
    """Fetch a bundle from an OCI registry into a file, the very bytes that were pushed, each verified."""
    from kaas.cache.oci_records import sha256
    from kaas.client.bundle_transfer import pull_bundle
    from kaas.client.oci_registry import parse_reference

    policy = _policy(trust_list, require_signature)
    listing = pull_bundle(parse_reference(place), file, policy)
    digest = f"sha256:{sha256(listing.manifest)}"
    if json:
        print_json({"file": str(file), "kernels": len(listing.layers), "digest": digest})
        return
    print(f"{file}: {len(listing.layers)} kernels, {size_text(file.stat().st_size)}, {digest}")


def _policy(trust_list: Path | None, required: bool) -> SignaturePolicy:
    from kaas.cache.signatures import SignaturePolicy

    return SignaturePolicy.read(trust_list or "", required=required)


def _signed_by(signing_key: Any) -> str:
    if signing_key is None:
        return ""
    return f'\nsigned; in a trust list: name = "{signing_key.trust_list_value}"'


def _show(digest: str, layers: Sequence[Layer], kernels: Sequence[KernelFacts], json: bool) -> None:
    from kaas.cache.signatures import parse_signatures

    rows = [
        msgspec.to_builtins(facts)
        | {"size_bytes": layer.size_bytes, "signed_by": sorted(parse_signatures(layer.key, layer.signatures))}
        for layer, facts in zip(layers, kernels, strict=True)
    ]
    if json:
        print_json({"digest": f"sha256:{digest}", "kernels": rows})
        return
    print_fields(
        [
            ("digest", f"sha256:{digest}"),
            ("kernels", str(len(rows))),
            ("size", size_text(sum(layer.size_bytes for layer in layers))),
        ]
    )
    print_table(
        ("key", "family", "spec", "target", "toolchain", "size", "signatures of"),
        (
            (
                row["key"][:12],
                str(row["spec"].get("family", "")),
                " ".join(f"{name}={value}" for name, value in row["spec"].items() if name != "family"),
                row["soc_name"],
                f"{row['toolchain_kind']} {row['cann_version']}",
                size_text(row["size_bytes"]),
                " ".join(row["signed_by"]),
            )
            for row in rows
        ),
    )
