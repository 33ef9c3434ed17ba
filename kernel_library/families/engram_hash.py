"""engram_hash: rows of embedding tables that the n-grams ending in a token hash to."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import (
    DYNAMIC,
    Dim,
    KernelSpec,
    require_bool,
    require_dim,
    require_int,
    within,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import NOMINAL_ROWS, SIMT_CACHE_BYTES, RowPlan, padded, plan_rows
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

BLOCK_TOKENS = 64
"""Tokens that a plan counts as one row; UB slots then start at multiples of 32 bytes whatever the types."""
THREADS = 256


class EngramHashSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="engram_hash"):
    """Hashes of the 2-grams to ``ngram``-grams ending in a token, one for each layer and table.

    Arguments in call order: ngram_token_ids[tokens, ngram] int32; multipliers[layers, ngram] int64;
    vocab_sizes[layers, ngram-1, tables] int32; offsets[layers, (ngram-1)*tables] int32;
    image_token_mask[tokens] bool if ``image_mask``; out[layers, tokens, (ngram-1)*tables] int32.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    ngram: Annotated[int, within(2, 16)]
    layers: Annotated[int, within(1, 64)]
    tables: Annotated[int, within(1, 64)]
    image_mask: bool = False
    tokens: Dim = "dynamic"

    def __post_init__(self) -> None:
        require_int(self.ngram, "ngram", 2, 16)
        require_int(self.layers, "layers", 1, 64)
        require_int(self.tables, "tables", 1, 64)
        require_bool(self.image_mask, "image_mask")
        require_dim(self.tokens, "tokens")

    @property
    def columns(self) -> int:
        """Hashes of a token in one layer."""
        return (self.ngram - 1) * self.tables

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if 64 tokens do not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: EngramHashSpec, target: Target) -> RowPlan:
    """The plan of blocks of 64 tokens; raises :class:`DoesNotFit` if not even one fits."""
    token_bytes = 4 * spec.ngram + spec.image_mask + 4 * spec.layers * spec.columns
    tokens = NOMINAL_ROWS if spec.tokens == DYNAMIC else int(spec.tokens)
    constants = 8 * padded(spec.layers * spec.ngram) + 8 * padded(spec.layers * spec.columns)
    return plan_rows(
        target,
        row_bytes=BLOCK_TOKENS * token_bytes,
        fixed_bytes=constants + SIMT_CACHE_BYTES,
        rows=-(-tokens // BLOCK_TOKENS),
        passes=16.0,  # 64-bit products and remainders, not the few bytes, take the time
        what=f"a block of {BLOCK_TOKENS} tokens",
        field="layers",
    )


def parameters(spec: EngramHashSpec) -> tuple[Parameter, ...]:
    """What a call takes: n-grams, the constants of the hashes, the optional mask, table rows."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    layers, ngram, columns = spec.layers, spec.ngram, spec.columns
    taken = [
        Parameter(name="ngram_token_ids", role="in", dtype="int32", shape=(tokens, ngram)),
        Parameter(name="multipliers", role="in", dtype="int64", shape=(layers, ngram)),
        Parameter(name="vocab_sizes", role="in", dtype="int32", shape=(layers, ngram - 1, spec.tables)),
        Parameter(name="offsets", role="in", dtype="int32", shape=(layers, columns)),
    ]
    if spec.image_mask:
        taken.append(Parameter(name="image_token_mask", role="in", dtype="bool", shape=(tokens,)))
    taken.append(Parameter(name="out", role="out", dtype="int32", shape=(layers, tokens, columns)))
    return tuple(taken)


def build(spec: EngramHashSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if 64 tokens do not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices={"tokens": plan.rows * BLOCK_TOKENS, "stages": plan.stages, "why": plan.why},
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: EngramHashSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: a thread per token, as lanes have no 64-bit product."""
    import tilelang.ascend.language as T

    entry = Entry("engram_hash", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    layers, ngram, tables, columns = spec.layers, spec.ngram, spec.tables, spec.columns
    tile = plan.rows * BLOCK_TOKENS

    @T.macro
    def load_constants(state: Any) -> None:
        call, (multiplier_ub, size_ub, offset_ub), _, _, _ = state
        T.copy(call.multipliers[0:layers, 0:ngram], multiplier_ub[0:layers, 0:ngram])
        T.copy(
            call.vocab_sizes[0:layers, 0 : ngram - 1, 0:tables], size_ub[0:layers, 0 : ngram - 1, 0:tables]
        )
        T.copy(call.offsets[0:layers, 0:columns], offset_ub[0:layers, 0:columns])

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, _, id_ub, mask_ub, _ = state
        begin, held = first * BLOCK_TOKENS, count * BLOCK_TOKENS
        T.copy(call.ngram_token_ids[begin : begin + held, 0:ngram], id_ub[slot, 0:held, 0:ngram])
        if spec.image_mask:
            T.copy(call.image_token_mask[begin : begin + held], mask_ub[slot, 0:held])

    @T.macro
    def hash_token(constants: Any, id_ub: Any, out_ub: Any, slot: Any, token: Any) -> None:
        multiplier_ub, size_ub, offset_ub = constants
        # Unsigned, because products are meant to wrap, and signed ones that overflow mean nothing in C++.
        mixed = T.alloc_var("uint64")
        for layer in T.serial(layers):
            mixed = T.cast(T.cast(id_ub[slot, token, 0], "int64"), "uint64") * T.cast(
                multiplier_ub[layer, 0], "uint64"
            )
            for gram in T.serial(ngram - 1):
                mixed = mixed ^ (
                    T.cast(T.cast(id_ub[slot, token, gram + 1], "int64"), "uint64")
                    * T.cast(multiplier_ub[layer, gram + 1], "uint64")
                )
                for table in T.serial(tables):
                    remainder = T.cast(mixed, "int64") % T.cast(size_ub[layer, gram, table], "int64")
                    out_ub[slot, layer, token, gram * tables + table] = (
                        T.cast(remainder, "int32") + offset_ub[layer, gram * tables + table]
                    )

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        _, constants, id_ub, mask_ub, out_ub = state
        with T.SimtVF(threads=THREADS):
            for token in T.Parallel(tile):
                if token < T.min(count * BLOCK_TOKENS, tokens - first * BLOCK_TOKENS):
                    if spec.image_mask:
                        if mask_ub[slot, token]:
                            for layer in T.serial(layers):
                                for column in T.serial(columns):
                                    out_ub[slot, layer, token, column] = -1
                        else:
                            hash_token(constants, id_ub, out_ub, slot, token)
                    else:
                        hash_token(constants, id_ub, out_ub, slot, token)

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, _, _, _, out_ub = state
        begin, held = first * BLOCK_TOKENS, count * BLOCK_TOKENS
        for layer in T.serial(layers):
            T.copy(out_ub[slot, layer, 0:held, 0:columns], call.out[layer, begin : begin + held, 0:columns])

    run = row_pipeline(
        plan,
        cores,
        T.truncdiv(tokens + BLOCK_TOKENS - 1, BLOCK_TOKENS),
        load=load,
        compute=compute,
        store=store,
        prepare=load_constants,
    )

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            multiplier_ub = T.alloc_shared((layers, ngram), "int64")
            size_ub = T.alloc_shared((layers, ngram - 1, tables), "int32")
            offset_ub = T.alloc_shared((layers, columns), "int32")
            id_ub = T.alloc_shared((plan.stages, tile, ngram), "int32")
            mask_ub = T.alloc_shared((plan.stages, tile), "bool") if spec.image_mask else id_ub
            out_ub = T.alloc_shared((plan.stages, layers, tile, columns), "int32")
            run((call, (multiplier_ub, size_ub, offset_ub), id_ub, mask_ub, out_ub), core)

    return entry.prim_func(block)


FAMILY = Family(
    name="engram_hash",
    summary="rows of embedding tables that the n-grams ending in a token hash to",
    spec_type=EngramHashSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=ROW_KERNEL_SOURCES,
    page=KernelPage(
        computes=(
            "For each layer and each n from 2 to `ngram`:\n\n"
            "    h = ids[t, 0]*m[0] ^ ids[t, 1]*m[1] ^ ... ^ ids[t, n-1]*m[n-1]      64 bits, wrapping\n"
            "    out[layer, t, (n-2)*tables + j] = h mod vocab_sizes[layer, n-2, j] + offsets[layer, ...]\n\n"
            "`h` is signed, and the remainder has the sign of the table size, which must not be 0: an index\n"
            "of a table is never negative. Tokens of an image get -1 everywhere."
        ),
        arguments={
            "ngram_token_ids": "the token, then those before it",
            "multipliers": "one per layer and place in the n-gram",
            "vocab_sizes": "rows of each table",
            "offsets": "where each table begins in the layer's embedding",
            "image_token_mask": "true for tokens of an image",
            "out": "row of the layer's embedding for each n-gram and table",
        },
        tolerance="bit-exact",
        facts=(
            "Butterfingrz/TileKernels on github.com: tile_kernels/engram/engram_hash_kernel.py and "
            "engram_hash_asc.py (shapes, order of the products)",
        ),
        serves=("tile_kernels.engram.engram_hash",),
        examples=(EngramHashSpec(ngram=3, layers=2, tables=8),),
    ),
)
