"""gemm: D[M, N] = (alpha *) A @ B (+ D) on the cube cores, fp32 accumulation."""

from __future__ import annotations

from typing import Literal

import msgspec

from kaas.kernel_library.family import BuiltKernel, Family
from kaas.kernel_library.spec import (
    Dim,
    Dtype,
    KernelSpec,
    require_bool,
    require_dim,
    require_int,
    require_one_of,
)
from kaas.proto.errors import InvalidSpec
from kaas.proto.target import Target

LEGAL_OUTPUTS: dict[str, tuple[str, ...]] = {
    "bf16": ("bf16", "fp32"),
    "fp16": ("fp16", "fp32"),
    "fp32": ("fp32",),
}
"""Which dtype_d the fixpipe can write from an fp32 accumulator, by input dtype."""


class GemmTile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An explicit tile choice: output tile rows and columns, and the K step held in L1 (elements)."""

    block_m: int
    block_n: int
    block_k: int

    def __post_init__(self) -> None:
        require_int(self.block_m, "tile.block_m", 16, 256, multiple_of=16)
        require_int(self.block_n, "tile.block_n", 16, 256, multiple_of=16)
        require_int(self.block_k, "tile.block_k", 16, 1024, multiple_of=16)


class GemmSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="gemm"):
    """Dense matrix product on one NPU.

    Layouts give the stored shapes: ``nt`` A[M,K] B[N,K]; ``nn`` A[M,K] B[K,N]; ``tn`` A[K,M] B[K,N];
    ``tt`` A[K,M] B[N,K]. D is always [M,N], row-major. ``accumulate`` adds the product to the D passed in;
    ``alpha`` adds an fp32 scalar argument that multiplies the product. ``tile`` overrides the tile choice.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    m: Dim = "dynamic"
    n: Dim
    k: Dim
    dtype_a: Dtype = "bf16"
    dtype_b: Dtype = "bf16"
    dtype_d: Dtype = "bf16"
    layout: Literal["nt", "nn", "tn", "tt"] = "nt"
    accumulate: bool = False
    alpha: bool = False
    tile: GemmTile | None = None

    def __post_init__(self) -> None:
        for field in ("m", "n", "k"):
            require_dim(getattr(self, field), field)
        for field in ("dtype_a", "dtype_b", "dtype_d"):
            require_one_of(getattr(self, field), field, ("bf16", "fp16", "fp32"))
        if self.dtype_b != self.dtype_a:
            raise InvalidSpec(
                f"dtype_b is {self.dtype_b} but dtype_a is {self.dtype_a}; the cube takes equal input dtypes",
                field="dtype_b",
                legal=[self.dtype_a],
            )
        require_one_of(self.dtype_d, "dtype_d", LEGAL_OUTPUTS[self.dtype_a])
        require_one_of(self.layout, "layout", ("nt", "nn", "tn", "tt"))
        require_bool(self.accumulate, "accumulate")
        require_bool(self.alpha, "alpha")
        if self.tile is not None and not isinstance(self.tile, GemmTile):
            raise InvalidSpec("tile is not a GemmTile", field="tile", legal="a GemmTile or null")


def build(spec: GemmSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s core count and buffer sizes."""
    raise NotImplementedError


FAMILY = Family(
    name="gemm",
    summary="dense matrix product, bf16 / fp16 / fp32, any layout, fp32 accumulation",
    spec_type=GemmSpec,
    build=build,
    module=__name__,
)
