"""Bundles to and from an OCI registry: what is there already is not sent, what comes is verified first."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kaas.cache.bundle import Bundle, verified_layer, write_bundle
from kaas.cache.oci_records import Descriptor, KernelFacts, Layer, checked_config, checked_manifest, digest_of
from kaas.cache.signatures import SignaturePolicy
from kaas.client.oci_registry import Reference, Registry


class Pushed(NamedTuple):
    """What a push sent: kernels and bytes that the repository did not have."""

    digest: str
    sent: int
    sent_bytes: int


class Listing(NamedTuple):
    """What a repository's manifest and config say, before any kernel is fetched."""

    manifest: bytes
    config: bytes
    layers: list[Layer]
    kernels: tuple[KernelFacts, ...]


def push_bundle(bundle: Bundle, reference: Reference) -> Pushed:
    """Upload a bundle. Raises :class:`RegistryFailed` or :class:`BundleRefused`.

    The manifest comes last, so that nobody sees a bundle whose kernels are not all there.
    """
    sent = sent_bytes = 0
    with Registry(reference) as registry:
        for layer in bundle.layers:
            if registry.push_blob(bundle.read(layer)):
                sent, sent_bytes = sent + 1, sent_bytes + layer.size_bytes
        registry.push_blob(bundle.config)
        return Pushed(registry.push_manifest(bundle.manifest), sent, sent_bytes)


def read_listing(registry: Registry) -> Listing:
    """What lies at a reference. Raises :class:`RegistryFailed` or :class:`BundleRefused`."""
    manifest = registry.pull_manifest()
    descriptor, layers = checked_manifest(manifest)
    config = _config(registry, descriptor)
    return Listing(manifest, config, layers, checked_config(config, layers))


def pull_bundle(reference: Reference, path: Path, policy: SignaturePolicy) -> Listing:
    """Fetch a bundle into a file, byte for byte the one that was pushed.

    Every kernel is verified as it comes. Raises :class:`BundleRefused`, :class:`SignatureRefused` or
    :class:`RegistryFailed`; then there is no file.
    """
    with Registry(reference) as registry:
        listing = read_listing(registry)
        facts = {one.key: one for one in listing.kernels}

        def fetch(layer: Layer) -> bytes:
            content = registry.pull_blob(layer.sha256, layer.size_bytes, f"{layer.key}.kernel")
            verified_layer(content, layer, facts[layer.key], policy)
            return content

        write_bundle(path, listing.manifest, listing.config, fetch)
    return listing


def _config(registry: Registry, descriptor: Descriptor) -> bytes:
    return registry.pull_blob(digest_of(descriptor, "manifest"), descriptor.size, "config")
