"""kv_record_pack: rows of bf16 values as quantised records of a KV cache."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from types import SimpleNamespace
from typing import Any, Literal

from kaas.kernel_library.attention.kv_records import RECORD_BYTES, RECORD_PITCH, WIDTH
from kaas.kernel_library.attention.packed_records import PACKED_RECORD_SOURCES, ROW_BYTES, record_packer
from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import DYNAMIC, Dim, KernelSpec, require_dim, require_one_of
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import (
    VECTOR_LANES,
    RowPlan,
    RowTile,
    plan_rows,
    require_row_tile,
)
from kaas.proto.launch import Parameter
from kaas.proto.target import Target


class KvRecordPackSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="kv_record_pack"
):
    """Rows of 512 bf16 values to records of the sparse attention's caches.

    "fp8": 512 e4m3 values and 16 e8m0 scales, 528 bytes. "fp4": 512 e2m1 values and 32 e4m3 scales, 288
    bytes.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    fmt: Literal["fp8", "fp4"] = "fp8"
    tokens: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_one_of(self.fmt, "fmt", ("fp8", "fp4"))
        require_dim(self.tokens, "tokens")
        require_row_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if ``tile`` exceeds ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: KvRecordPackSpec, target: Target) -> RowPlan:
    """The row plan; raises :class:`DoesNotFit`."""
    return plan_rows(
        target,
        row_bytes=ROW_BYTES,
        rows=None if spec.tokens == DYNAMIC else int(spec.tokens),
        what="a record",
        field="fmt",
        given=spec.tile,
    )


def parameters(spec: KvRecordPackSpec) -> tuple[Parameter, ...]:
    """What a call takes: rows and their records."""
    tokens = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    record = (tokens, RECORD_BYTES[spec.fmt])
    return (
        Parameter(name="x", role="in", dtype="bf16", shape=(tokens, WIDTH)),
        Parameter(name="records", role="out", dtype="uint8", shape=record),
    )


def build(spec: KvRecordPackSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores and UB size."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: KvRecordPackSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``."""
    import tilelang.ascend.language as T

    entry = Entry("kv_record_pack", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    pack, record = record_packer(spec.fmt), RECORD_BYTES[spec.fmt]

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        T.copy(state.call.x[first : first + count, 0:WIDTH], state.x[slot, 0:count, 0:WIDTH])

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        with T.SimdVF():
            pack(state, slot, count)

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        T.copy(state.records[slot, 0:count, 0:record], state.call.records[first : first + count, 0:record])

    run = row_pipeline(plan, cores, tokens, load=load, compute=compute, store=store)

    def allocate(call: Any) -> SimpleNamespace:
        stage = (plan.stages, plan.rows)
        return SimpleNamespace(
            call=call,
            x=T.alloc_shared((*stage, WIDTH), "bfloat16"),
            records=T.alloc_shared((*stage, RECORD_PITCH), "uint8"),
            magnitudes=T.alloc_shared((*stage, VECTOR_LANES), "float32"),
            factors=T.alloc_shared((*stage, VECTOR_LANES), "float32"),
        )

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            run(allocate(call), core)

    return entry.prim_func(block)


PAGE = KernelPage(
    computes="""
A record is what the caches of mla_sparse_decode hold for one token: its values, then the scales of their
blocks.

| fmt | bytes | values | scales |
| --- | --- | --- | --- |
| fp8 | 528 | 512 e4m3 | 16 e8m0, one for 32 values |
| fp4 | 288 | 512 e2m1, the even one of a pair in the low nibble | 32 e4m3, one for 16 values |

With a = the largest magnitude of a block,

    fp8: scale = 2^ceil(log2(max(a / 448, 1e-4)))       value = e4m3(x / scale)
    fp4: scale = e4m3(min(max(a / 6, 2^-9), 448))       value = e2m1(x / scale)

in fp32, rounded to nearest even and saturating. A block with an infinity or a NaN has a scale that is NaN and
zeros for values, so that all of it reads as NaN.
""",
    arguments={
        "x": "[tokens, 512], the keys (and values) of tokens",
        "records": "[tokens, 528 or 288] bytes; a cache [blocks, page, 1, bytes] is blocks * page of them",
    },
    tolerance="bit-exact",
    facts=("https://github.com/deepseek-ai/FlashMLA: tests/quant.py (layout, scales, clamps)",),
    serves=(),
    examples=(KvRecordPackSpec(), KvRecordPackSpec(fmt="fp4")),
)

FAMILY = Family(
    name="kv_record_pack",
    summary="rows of bf16 values as the fp8 or fp4 records of a KV cache",
    spec_type=KvRecordPackSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=tuple(dict.fromkeys((*ROW_KERNEL_SOURCES, *PACKED_RECORD_SOURCES))),
    page=PAGE,
)
