"""mla_decode: attention of a few queries per request over its pages of a latent cache."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any, Literal

import msgspec

from kaas.kernel_library.attention.attention_program import ATTENTION_SOURCES, attention_program
from kaas.kernel_library.attention.attention_softmax import SPARSE_PITCH, softmax_scale
from kaas.kernel_library.attention.attention_tiles import (
    CHUNK,
    AttentionTile,
    AttentionTiles,
    plan_attention,
    require_attention_tile,
)
from kaas.kernel_library.attention.merged_parts import MERGED_ROWS, merged_parts, merged_parts_bytes
from kaas.kernel_library.attention.row_views import FlatRows
from kaas.kernel_library.cube.core_barrier import vector_core_barrier
from kaas.kernel_library.cube.cube_pipeline import PASS_CONFIGS
from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import (
    DYNAMIC,
    Dim,
    KernelSpec,
    require_bool,
    require_dim,
    require_int,
    require_one_of,
    within,
)
from kaas.proto.errors import InvalidSpec
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

D_V = 512
MAX_QUERIES = 16
MAX_PAGE = 1024
MAX_SPLIT = 2**20
ROW_BLOCKS = (64, 48, 32, 16)
NOMINAL_REQUESTS = 64
"""How many requests a dynamic batch is taken to have."""
SEGMENT = 8
"""Rows that surely belong to one query token: heads come in multiples of 16, and halves of a tile of 8."""


class MlaDecodeSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mla_decode"):
    """Multi-head latent attention over a paged bf16 cache: every head sees the same keys.

    A cache record is ``d_qk`` values, of which the first 512 are also the value; ``page`` records are a
    page. ``s_q`` query tokens of a request are its last ones: with ``causal`` each sees the cache up to
    itself. ``split`` gives parts of so many keys, whole pages, to different cores, for few requests with many
    keys. ``tile`` overrides the rows of queries (heads x tokens) and the keys that meet at a time.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    heads: Annotated[int, within(16, 128, multiple_of=16)] = 128
    d_qk: Literal[512, 576] = 576
    s_q: Annotated[int, within(1, MAX_QUERIES)] = 1
    page: Annotated[int, within(16, MAX_PAGE, multiple_of=16)] = 64
    causal: bool = False
    split: Annotated[int, within(16, MAX_SPLIT, multiple_of=16)] | None = None
    requests: Dim = "dynamic"
    tile: AttentionTile | None = None

    def __post_init__(self) -> None:
        require_int(self.heads, "heads", 16, 128, multiple_of=16)
        require_one_of(self.d_qk, "d_qk", (512, 576))
        require_int(self.s_q, "s_q", 1, MAX_QUERIES)
        require_int(self.page, "page", 16, MAX_PAGE, multiple_of=16)
        require_bool(self.causal, "causal")
        # Rows of queries are counted in 32 bits, and so are the values of one part of a split.
        values = D_V if self.split is not None else 1
        require_dim(self.requests, "requests", self.MAX_EXTENT // (self.s_q * self.heads * values))
        require_attention_tile(self.tile)
        if self.split is not None:
            require_int(self.split, "split", 16, MAX_SPLIT, multiple_of=self.page)
        legal = key_counts(self)
        if self.tile is not None and self.tile.keys not in legal:
            raise InvalidSpec(
                f"tile.keys is {self.tile.keys}; legal with these pages: {', '.join(map(str, legal))}",
                field="tile.keys",
                legal=legal,
            )

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if no tile (or not the given one) fits ``target``'s buffers."""
        tiles_of(self, target)


def key_counts(spec: MlaDecodeSpec) -> list[int]:
    """Sizes of a block of keys: whole pages, or whole fractions of one; a part is whole blocks."""
    return [
        keys
        for keys in range(16, CHUNK + 1, 16)
        if (keys % spec.page == 0 or spec.page % keys == 0) and (spec.split or keys) % keys == 0
    ]


def tiles_of(spec: MlaDecodeSpec, target: Target) -> tuple[AttentionTiles, dict[str, Any]]:
    """The tiles and why; raises :class:`DoesNotFit` if nothing fits."""
    rows = spec.s_q * spec.heads
    requests = NOMINAL_REQUESTS if spec.requests == DYNAMIC else int(spec.requests)
    counts = (-(-rows // most) for most in ROW_BLOCKS)
    return plan_attention(
        target,
        d_qk=spec.d_qk,
        d_v=D_V,
        shared_values=True,
        # Of equal height, so that the last one is as full as can be.
        row_counts=sorted({-(-rows // count // 16) * 16 for count in counts}),
        key_counts=key_counts(spec),
        matrices=requests,
        matrix_rows=rows,
        given=spec.tile,
        more_ub_bytes=merged_parts_bytes(D_V) if spec.split else 0,
    )


def parameters(spec: MlaDecodeSpec) -> tuple[Parameter, ...]:
    """What a call takes: queries, the cache, who owns which pages of it, the scale, output and lse."""
    requests = "requests" if spec.requests == DYNAMIC else spec.requests
    queries = (requests, spec.s_q, spec.heads)
    part_rows = ("parts", requests, spec.s_q * spec.heads)
    workspace = (
        Parameter(name="part_out", role="inout", dtype="fp32", shape=(*part_rows, D_V)),
        Parameter(name="part_lse", role="inout", dtype="fp32", shape=part_rows),
    )
    return (
        Parameter(name="q", role="in", dtype="bf16", shape=(*queries, spec.d_qk)),
        Parameter(
            name="kv_cache",
            role="in",
            dtype="bf16",
            shape=("pages", spec.page, 1, spec.d_qk),
            may_be_empty=True,
        ),
        Parameter(
            name="block_table", role="in", dtype="int32", shape=(requests, "max_pages"), may_be_empty=True
        ),
        Parameter(name="cache_seqlens", role="in", dtype="int32", shape=(requests,)),
        softmax_scale(),
        *(workspace if spec.split else ()),
        Parameter(name="out", role="out", dtype="bf16", shape=(*queries, D_V)),
        Parameter(name="lse", role="out", dtype="fp32", shape=(requests, spec.heads, spec.s_q)),
    )


def build(spec: MlaDecodeSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s core count and buffer sizes.

    Raises :class:`DoesNotFit` if no tile fits.
    """
    tiles, why = tiles_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, tiles, target.cube_cores),
        choices={**tiles.choices(), "why": why},
        pass_configs=dict(PASS_CONFIGS),
    )


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """One tile: its request, its first row there, and the keys that it meets.

    They are ``length`` keys from ``key`` on, and a request's last query token sees ``seen`` from there on.
    """

    call: Any
    request: Any
    row: Any
    part: Any
    key: Any
    length: Any
    seen: Any


def _program(spec: MlaDecodeSpec, tiles: AttentionTiles, cores: int) -> Any:
    """The TileLang function of ``spec``: both sides walk the tiles of all requests in turn."""
    import tilelang.ascend.language as T

    entry = Entry("mla_decode", parameters(spec))
    requests = entry.extent("requests" if spec.requests == DYNAMIC else spec.requests)
    max_pages = entry.extent("max_pages")
    heads, s_q, page, keys = spec.heads, spec.s_q, spec.page, tiles.keys
    request_rows, half = s_q * heads, tiles.rows // 2
    request_tiles = -(-request_rows // tiles.rows)
    run, split, part_keys = min(keys, page), spec.split, spec.split or 0
    parts = 1 if split is None else entry.extent("parts")

    @T.macro
    def load_query(place: Any, q_l1: Any) -> None:
        first = place.request * request_rows
        rows = FlatRows(place.call.q, first + request_rows)
        T.copy(rows[first + place.row : first + place.row + tiles.rows, 0 : spec.d_qk], q_l1)

    @T.macro
    def record(place: Any, key: Any) -> Any:
        """Where a request's key lies among the records of all pages."""
        number = place.call.block_table[place.request, T.truncdiv(key, page)]
        return number * page + T.truncmod(key, page)

    @T.macro
    def load_keys(rings: Any, place: Any, block: Any) -> None:
        row = T.alloc_var("int32")
        count = T.alloc_var("int32")
        left = T.alloc_var("int32")
        copied = T.alloc_var("int32", init=0)
        left = place.length - block * keys
        if left < keys or keys <= page:
            # The last block's first page brings zeros for all that follows, which other pages then replace.
            row = record(place, place.key + block * keys)
            count = T.min(left, run)
            T.copy(
                FlatRows(place.call.kv_cache, row + count)[row : row + keys, 0 : spec.d_qk],
                rings.k_l1[rings.key_slot(block), :, :],
            )
            copied = 1
            if keys > page:
                T.ascend_pipe_barrier("PIPE_MTE2")
        if keys > page:
            for turn in T.serial(keys // page - copied):
                first = (turn + copied) * page
                count = T.min(left - first, page)
                # What a table says behind the last page that a request has may be anything.
                if count > 0:
                    row = record(place, place.key + block * keys + first)
                    T.assume(first >= 0)
                    T.assume(first + count <= keys)
                    T.copy(
                        FlatRows(place.call.kv_cache, row + count)[row : row + count, 0 : spec.d_qk],
                        rings.k_l1[rings.key_slot(block), first : first + count, :],
                    )

    def token_of(row: Any) -> Any:
        """The token that each lane's row belongs to."""
        token = T.simd.vdup(T.int32(0), "int32")
        for later in range(1, s_q):
            counted = T.simd.vdup(T.int32(later), "int32")
            token = T.simd.vsel(counted, token, T.simd.vcmps(row, T.int32(later * heads), op="ge"))
        return token

    def limits(state: Any, place: Any) -> Any:
        if not spec.causal:
            return T.simd.vdup(place.length, "int32")
        row = T.simd.vci(place.row + state.vector_core * half, "int32")
        return T.simd.vadds(token_of(row), place.seen - (s_q - 1))

    @T.macro
    def put(state: Any, call: Any, request: Any, row: Any, count: Any) -> None:
        """The first ``count`` rows of results to those from ``row`` on of a request."""
        first = request * request_rows + row
        T.copy(
            state.result_ub[0:count, 0:D_V],
            FlatRows(call.out, requests * request_rows)[first : first + count, 0:D_V],
        )
        if s_q == 1:
            T.copy(state.lse_ub[0:count], call.lse[request, row : row + count, 0])
        else:
            for segment in T.serial(T.truncdiv(count, SEGMENT)):
                at = row + segment * SEGMENT
                head = T.truncmod(at, heads)
                token = T.truncdiv(at, heads)
                T.copy(
                    state.lse_ub[segment * SEGMENT : segment * SEGMENT + SEGMENT, 0:1],
                    call.lse[request, head : head + SEGMENT, token : token + 1],
                )

    @T.macro
    def store(state: Any, call: Any, place: Any) -> None:
        row = T.alloc_var("int32")
        count = T.alloc_var("int32")
        row = place.row + state.vector_core * half
        count = T.max(T.min(request_rows - row, half), 0)
        if count > 0:
            if split is None:
                put(state, call, place.request, row, count)
            else:
                T.copy(
                    state.values[0:count, 0:D_V],
                    call.part_out[place.part, place.request, row : row + count, 0:D_V],
                )
                T.copy(state.lse_ub[0:count], call.part_lse[place.part, place.request, row : row + count])

    @T.macro
    def length_of(call: Any, request: Any) -> Any:
        length = T.alloc_var("int32")
        length = T.max(T.min(call.cache_seqlens[request], max_pages * page), 0)
        if split is not None:
            length = T.min(length, parts * split)
        return length

    @T.macro
    def walk(call: Any, core: Any, visit: Any) -> None:
        turns = T.alloc_var("int32")
        number = T.alloc_var("int32")
        request = T.alloc_var("int32")
        part = T.alloc_var("int32")
        row = T.alloc_var("int32")
        key = T.alloc_var("int32")
        seen = T.alloc_var("int32")
        length = T.alloc_var("int32")
        blocks = T.alloc_var("int32")
        # Kept in a variable: TVM turns a loop whose extent is known to be 0 or 1 into its body.
        turns = T.truncdiv(requests * parts * request_tiles + cores - 1 - core, cores)
        for turn in T.serial(turns):
            number = T.truncdiv(turn * cores + core, request_tiles)
            row = T.truncmod(turn * cores + core, request_tiles) * tiles.rows
            request = T.truncdiv(number, parts)
            part = T.truncmod(number, parts)
            key = part * part_keys
            seen = length_of(call, request) - key
            length = T.min(seen, split) if split else seen
            blocks = T.truncdiv(length + keys - 1, keys)
            place = _Place(call=call, request=request, row=row, part=part, key=key, length=length, seen=seen)
            if split is None or length > 0:
                visit(place, blocks)

    @T.macro
    def load_part(call: Any, place: Any, part: Any, values_ub: Any, lse_ub: Any) -> None:
        request, row = place
        T.copy(call.part_out[part, request, row : row + MERGED_ROWS, 0:D_V], values_ub)
        T.copy(call.part_lse[part, request, row : row + MERGED_ROWS], lse_ub)

    @T.macro
    def store_merged(state: Any, call: Any, place: Any) -> None:
        request, row = place
        put(state, call, request, row, MERGED_ROWS)

    lse_pitch = 1 if s_q == 1 else SPARSE_PITCH
    merging = merged_parts(D_V, lse_pitch, load=load_part, store=store_merged)
    all_stored = vector_core_barrier()

    @T.macro
    def merge(state: Any, call: Any, core: Any) -> None:
        turns = T.alloc_var("int32")
        request = T.alloc_var("int32")
        row = T.alloc_var("int32")
        count = T.alloc_var("int32")
        groups = request_rows // MERGED_ROWS
        merging.open(state)
        all_stored()
        turns = T.truncdiv(requests * groups + 2 * cores - 1 - core, 2 * cores)
        for turn in T.serial(turns):
            request = T.truncdiv(turn * 2 * cores + core, groups)
            row = T.truncmod(turn * 2 * cores + core, groups) * MERGED_ROWS
            count = T.truncdiv(length_of(call, request) + split - 1, split)
            merging.merge(state, call, (request, row), count)
        merging.close()

    return attention_program(
        entry,
        tiles,
        cores,
        walk=walk,
        load_query=load_query,
        load_keys=load_keys,
        limits=limits,
        store=store,
        lse_pitch=lse_pitch if split is None else 1,
        merge=None if split is None else merge,
    )


PAGE = KernelPage(
    computes="""
Request b has `cache_seqlens[b]` keys; key j is record j mod `page` of page `block_table[b, j / page]`.
For each of its `s_q` query tokens t and heads h, over the keys j that it sees,

    score[j]    = softmax_scale * sum over d of q[b,t,h,d] * record[j][d]
    lse[b,h,t]  = ln sum over j of exp(score[j])
    out[b,t,h]  = sum over j of exp(score[j] - lse[b,h,t]) * record[j][0:512]

With `causal`, token t sees all keys but the last s_q - 1 - t: the query tokens' own records are in the
cache. A token that sees none has output 0 and lse +inf. Lengths below 0 count as 0, lengths beyond the
block table as its end. Records behind a request's last one are never read; nor are table entries behind
its last page.

*How.* All heads see the same keys, so that a tile is up to 64 rows of (token, head). Keys come in
blocks of whole pages, or fractions of one: the cube multiplies queries and keys, the vector cores make
exponentials of the scores under a maximum that may still grow, the cube multiplies them, as bf16, with
the first 512 columns of the same block, which lies in L1 once, and the vector cores add that to sums of
fp32, which shrink when the maximum grows. Pages of 2^n records make the largest blocks.

*Few requests.* A core takes whole tiles of requests. `split` gives parts of so many keys to different
cores, in any order; their outputs, fp32, and lse (-inf where a token sees none of a part) go to
`part_out` and `part_lse`, and behind a barrier of all cores the vector cores merge them. Parts follow
from `split` alone, so that a result never depends on the core count. Keys behind `parts` x `split` are
left out. The barrier needs all blocks, one per cube core, on the device at once.

*Infinities and NaN.* A score of -inf weighs nothing. NaN in a query, in a record that it sees, or a
score of +inf makes its output and lse NaN. Records that are not finite make NaN of all rows of a tile
that meets their block, seen or not: 0 * inf.
""",
    arguments={
        "q": "[requests, s_q, heads, d_qk]",
        "kv_cache": "[pages, page, 1, d_qk]; the first 512 values of a record are its value",
        "block_table": "[requests, max_pages], the pages of each request in order",
        "cache_seqlens": "keys of each request",
        "softmax_scale": "factor of the scores, 576^-0.5 or 192^-0.5 as the model has it; from -2^32 to 2^32",
        "part_out": "[parts, requests, s_q * heads, 512], scratch; only parts with keys are written",
        "part_lse": "[parts, requests, s_q * heads], scratch likewise",
        "out": "[requests, s_q, heads, 512]",
        "lse": "[requests, heads, s_q], natural logarithms",
    },
    tolerance="outputs within 1e-3 + 2.01/128 and calc_diff 5e-6 of float64, lse within 1e-6 + 8.01/65536; "
    "equal weights of 2^n whole values and single keys to the last bit",
    facts=(
        "https://github.com/deepseek-ai/FlashMLA (flash_mla_with_kvcache, dense: arguments, empty caches)",
        "asc-devkit, asc_copy_l0c2ub: rows of an accumulator split over both vector cores",
        "asc-devkit, asc_sync_inter_arrive and asc_sync_inter_wait: all vector cores",
    ),
    serves=("flash_mla.flash_mla_with_kvcache",),
    examples=(
        MlaDecodeSpec(),
        MlaDecodeSpec(heads=64, s_q=2, causal=True),
        MlaDecodeSpec(heads=16, split=2048),
    ),
)

FAMILY = Family(
    name="mla_decode",
    summary="latent attention of a few queries per request over a paged bf16 cache",
    spec_type=MlaDecodeSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(
        *ATTENTION_SOURCES,
        "kaas.kernel_library.attention.merged_parts",
        "kaas.kernel_library.cube.core_barrier",
    ),
    page=PAGE,
)
