"""Lowering: a spec and a target become Ascend C source and launch metadata. Runs in compile workers only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kaas.compiler.signature import SignatureMismatch, match_signature
from kaas.kernel_library.registry import family_named
from kaas.kernel_library.spec import KernelSpec
from kaas.proto.errors import CompileFailed, KaasError
from kaas.proto.launch import LaunchMetadata, Parameter
from kaas.proto.target import Target

LOG_TAIL_CHARS = 8000


@dataclass(frozen=True, kw_only=True)
class LoweredKernel:
    """Ascend C source, how to launch what it compiles to, and the builder's choices."""

    source: str
    launch: LaunchMetadata
    choices: dict[str, Any]


def lower(spec: KernelSpec, target: Target) -> LoweredKernel:
    """Build the family's program and lower it; TileLang's own caches take no part.

    Raises what the builder refuses (:class:`DoesNotFit`, ...) and :class:`CompileFailed` at stage ``lower``.
    """
    import tilelang
    from tvm.ir.transform import PassContext
    from tvm.target import Target as TvmTarget

    family = family_named(spec.family)
    try:
        # Element-wise vector code looks the target up while it is traced as well as while it is lowered.
        with TvmTarget({"kind": "ascend"}):
            built = family.build(spec, target)
            with PassContext(opt_level=3, config=built.pass_configs):
                artifact = tilelang.lower(
                    built.prim_func, target="ascend", enable_device_compile=False, enable_host_codegen=False
                )
            return LoweredKernel(
                source=artifact.kernel_source,
                launch=_launch_metadata(artifact, family.parameters(spec)),
                choices=built.choices,
            )
    except (KaasError, MemoryError):
        raise
    except Exception as error:
        # TileLang and TVM raise whatever they like, down to bare Exception.
        raise CompileFailed(
            f"{spec.family} cannot be lowered: {_last_line(error)}",
            stage="lower",
            log_tail=f"{type(error).__name__}: {error}"[-LOG_TAIL_CHARS:],
            deterministic=True,
        ) from error


def _launch_metadata(artifact: Any, parameters: tuple[Parameter, ...]) -> LaunchMetadata:
    functions = list(artifact.device_mod.functions.values())
    if len(functions) != 1:
        raise SignatureMismatch(f"the program has {len(functions)} device functions; one is needed")
    attributes: Mapping[str, Any] = functions[0].attrs
    entry = str(attributes["global_symbol"])
    return LaunchMetadata(
        entry=entry,
        block_count=_block_count(attributes["thread_extent"]),
        dynamic_ub_bytes=int(attributes.get("dyn_shared_memory_buf") or 0),
        parameters=parameters,
        signature=match_signature(artifact.kernel_source, entry, parameters),
    )


def _block_count(extents: Mapping[Any, Any]) -> int:
    blocks = {str(name): extent for name, extent in extents.items() if str(name).startswith("blockIdx")}
    try:
        return math.prod(int(extent) for extent in blocks.values())
    except TypeError:
        raise SignatureMismatch(f"the grid {blocks} is not constant") from None


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
