"""kv_record_unpack: quantised records of a KV cache as rows of bf16 values."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from types import SimpleNamespace
from typing import Any, Literal

from kaas.kernel_library.attention.kv_records import (
    ELEMENTS,
    KV_RECORD_SOURCES,
    RECORD_BYTES,
    WIDTH,
    held_bytes,
    hold_records,
    record_reader,
)
from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import DYNAMIC, Dim, KernelSpec, require_dim, require_one_of
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import RowPlan, RowTile, plan_rows, require_row_tile
from kaas.proto.launch import Parameter
from kaas.proto.target import Target


class KvRecordUnpackSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="kv_record_unpack"
):
    """Records of the sparse attention's caches to rows of 512 bf16 values; the reverse of kv_record_pack.

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


def plan_of(spec: KvRecordUnpackSpec, target: Target) -> RowPlan:
    """The row plan; raises :class:`DoesNotFit`."""
    return plan_rows(
        target,
        row_bytes=held_bytes(1, 1, WIDTH, (spec.fmt,)) + 2 * WIDTH,
        rows=None if spec.tokens == DYNAMIC else int(spec.tokens),
        what="a record",
        field="fmt",
        given=spec.tile,
    )


def parameters(spec: KvRecordUnpackSpec) -> tuple[Parameter, ...]:
    """What a call takes: records and their rows."""
    tokens = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    record = (tokens, RECORD_BYTES[spec.fmt])
    return (
        Parameter(name="records", role="in", dtype="uint8", shape=record),
        Parameter(name="x", role="out", dtype="bf16", shape=(tokens, WIDTH)),
    )


def build(spec: KvRecordUnpackSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores and UB size."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: KvRecordUnpackSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``."""
    import tilelang.ascend.language as T

    entry = Entry("kv_record_unpack", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    reader, record = record_reader(spec.fmt), RECORD_BYTES[spec.fmt]
    span = ELEMENTS * reader.registers

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        T.copy(state.call.records[first : first + count, 0:record], state.raw[slot, 0:count, 0:record])

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        with T.SimdVF():
            reader.decode(state, slot, count)
            T.simd.mem_bar("VST_VLD")
            for row_16 in T.serial(T.cast(count, "uint16")):
                row = T.cast(row_16, "int32")
                for step in T.unroll(WIDTH // span, explicit=True):
                    values = reader.read(state, slot, row, step)
                    T.simd.vsts(state.words[slot, row, step * span], values[0], dist="NORM_B16")
                    if reader.registers == 2:
                        T.simd.vsts(
                            state.words[slot, row, step * span + ELEMENTS], values[1], dist="NORM_B16"
                        )

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        T.copy(state.x[slot, 0:count, 0:WIDTH], state.call.x[first : first + count, 0:WIDTH])

    run = row_pipeline(plan, cores, tokens, load=load, compute=compute, store=store)

    def allocate(call: Any) -> SimpleNamespace:
        held = hold_records(plan.stages, plan.rows, WIDTH, (spec.fmt,))
        x = T.alloc_shared((plan.stages, plan.rows, WIDTH), "bfloat16")
        words = T.view(x, (plan.stages, plan.rows, WIDTH), dtype="uint16")
        return SimpleNamespace(call=call, x=x, words=words, **held)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            run(allocate(call), core)

    return entry.prim_func(block)


PAGE = KernelPage(
    computes="""
Each value of a record times the scale of its block, as bf16; kv_record_pack says how records are laid out.
Only products that are too small for bf16 are rounded (to nearest even). e8m0 0 is 2^-127; a scale of 255, or
an e4m3 scale that is NaN, makes its block NaN. It is what mla_sparse_decode multiplies.
""",
    arguments={
        "records": "[tokens, 528 or 288] bytes; a cache [blocks, page, 1, bytes] is blocks * page of them",
        "x": "[tokens, 512]",
    },
    tolerance="bit-exact",
    facts=("https://github.com/deepseek-ai/FlashMLA: tests/quant.py (layout)",),
    serves=(),
    examples=(KvRecordUnpackSpec(), KvRecordUnpackSpec(fmt="fp4")),
)

FAMILY = Family(
    name="kv_record_unpack",
    summary="the fp8 or fp4 records of a KV cache as rows of bf16 values",
    spec_type=KvRecordUnpackSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=tuple(dict.fromkeys((*ROW_KERNEL_SOURCES, *KV_RECORD_SOURCES))),
    page=PAGE,
)
