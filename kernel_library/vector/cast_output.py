"""Cast output: the fields of a spec whose result may leave as fp8 or fp4 values with scales, and their UB.

The result is what the plain kernel would write, quantised by :mod:`kaas.kernel_library.vector.quantise`.
"""

from typing import Any, Literal

from kaas.kernel_library.spec import require_bool, require_one_of
from kaas.kernel_library.vector.quantise import QUANTISE_SOURCES, RowQuantiser
from kaas.proto.errors import InvalidSpec
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter

CAST_OUTPUT_SOURCES = ("kaas.kernel_library.vector.cast_output", *QUANTISE_SOURCES)
"""For ``Family.sources`` of a family that uses this module."""

BLOCK = 32
Cast = Literal["none", "e4m3", "e2m1"]
ScaleDtype = Literal["fp32", "e8m0x2"]


def require_cast(spec: Any, columns: str = "hidden") -> None:
    """Check a spec's fields ``cast``, ``round_sf``, ``scale_dtype`` and ``col_major`` against each other.

    ``columns`` is the field with the number of values in a row. Raises :class:`InvalidSpec`.
    """
    require_one_of(spec.cast, "cast", ("none", "e4m3", "e2m1"))
    require_bool(spec.round_sf, "round_sf")
    require_one_of(spec.scale_dtype, "scale_dtype", ("fp32", "e8m0x2"))
    require_bool(spec.col_major, "col_major")
    if spec.cast == "none":
        for field, legal in (("round_sf", False), ("scale_dtype", "fp32"), ("col_major", False)):
            if getattr(spec, field) != legal:
                raise InvalidSpec(
                    f"{field} says something about scales, and cast is none", field=field, legal=[legal]
                )
        return
    if getattr(spec, columns) % BLOCK:
        raise InvalidSpec(
            f"{columns} is {getattr(spec, columns)}; legal with a cast: a multiple of {BLOCK}",
            field=columns,
            legal=f"a multiple of {BLOCK}",
        )
    if spec.scale_dtype == "e8m0x2" and not spec.round_sf:
        raise InvalidSpec(
            "round_sf is false, but e8m0 scales are powers of two; legal: true",
            field="round_sf",
            legal=[True],
        )


def quantiser_of(spec: Any, hidden: int, source: Literal["bf16", "fp32"]) -> RowQuantiser:
    """The quantiser of a spec with a cast."""
    return RowQuantiser(
        hidden=hidden,
        source=source,
        fmt=spec.cast,
        round_sf=spec.round_sf,
        scales="e8m0" if spec.scale_dtype == "e8m0x2" else "fp32",
        col_major=spec.col_major,
    )


def cast_parameters(
    spec: Any, name: str, tokens: Extent, hidden: int, *, may_be_empty: bool = False
) -> tuple[Parameter, ...]:
    """The outputs of a spec with a cast: ``name`` [tokens, hidden] (fp4 as pairs), and ``name``_scales."""
    dtype, columns = ("e2m1x2", hidden // 2) if spec.cast == "e2m1" else ("e4m3", hidden)
    blocks = -(-hidden // (2 * BLOCK)) if spec.scale_dtype == "e8m0x2" else hidden // BLOCK
    return (
        Parameter(name=name, role="out", dtype=dtype, shape=(tokens, columns), may_be_empty=may_be_empty),
        Parameter(
            name=f"{name}_scales",
            role="out",
            dtype=spec.scale_dtype,
            shape=(blocks, tokens) if spec.col_major else (tokens, blocks),
            may_be_empty=may_be_empty,
        ),
    )


class SingleStage:
    """A buffer [rows, columns] that the vector pipe alone uses, indexed as if every stage had one."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __getitem__(self, at: tuple[Any, ...]) -> Any:
        return self.buffer[at[1:]]
