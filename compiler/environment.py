"""Environment: everything besides a spec that decides this node's keys, put together for publication."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence

from kaas.compiler.compile_options import effective_options
from kaas.compiler.generator import identify_generator
from kaas.compiler.toolkit import Toolkit
from kaas.kernel_library.registry import families, family_digest
from kaas.proto.environment import Environment, Locality
from kaas.proto.passport import SCHEMA_VERSION
from kaas.proto.target import Target


def describe_environment(
    toolkit: Toolkit,
    target: Target,
    target_source: str,
    *,
    generation: int,
    socket: str,
    extra_options: Sequence[str] = (),
) -> Environment:
    """This node's environment. ``generation`` is the caller's; paths go into ``locality`` alone.

    Raises :class:`ToolchainMissing` when TileLang is not installed.
    """
    generator = identify_generator()
    return Environment(
        schema_version=SCHEMA_VERSION,
        generation=generation,
        kaas_version=importlib.metadata.version("ascend-kaas"),
        target=target,
        target_source=target_source,
        toolchain=toolkit.identity,
        tilelang_version=generator.tilelang_version,
        tilelang_native_digest=generator.native_digest,
        templates_digest=generator.templates_digest,
        lowering_digest=generator.lowering_digest,
        family_digests={name: family_digest(family) for name, family in sorted(families().items())},
        options=effective_options(target, extra_options),
        locality=Locality(
            acl_library=str(toolkit.acl_library), toolkit_home=str(toolkit.home), socket=socket
        ),
    )
