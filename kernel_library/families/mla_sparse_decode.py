"""mla_sparse_decode: attention of a few query tokens per request over listed records of quantised caches."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any, Literal

from kaas.kernel_library.attention.attention_softmax import SPARSE_PITCH, softmax_scale
from kaas.kernel_library.attention.attention_tiles import AttentionTiles
from kaas.kernel_library.attention.gathered_keys import KeySet
from kaas.kernel_library.attention.kv_records import RECORD_BYTES, WIDTH, RecordFormat
from kaas.kernel_library.attention.sparse_program import SPARSE_ATTENTION_SOURCES, sparse_program
from kaas.kernel_library.attention.sparse_tiles import (
    D_V,
    SparseTile,
    plan_sparse_attention,
    require_sparse_tile,
)
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

MAX_TOPK = 65536
MAX_QUERIES = 16
NOMINAL_REQUESTS = 64
"""How many requests a dynamic batch is taken to have."""


class MlaSparseDecodeSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mla_sparse_decode"
):
    """Sparse multi-head latent attention over caches of quantised records of 512 values.

    A record of the cache is 528 bytes: 512 e4m3 values and 16 e8m0 scales. ``extra`` names a second cache,
    "fp8" with the same records or "fp4" with such of 288 bytes: 512 e2m1 values and 32 e4m3 scales; its lists
    have ``extra_topk`` indices. Every query token sees the records of its own lists, all heads the same.
    Lists are multiples of 64 long; ``topk_length`` and ``extra_topk_length`` say that a call tells, per
    request, how many indices of each count. ``attn_sink`` adds one score per head that weighs no value.
    ``tile`` overrides how many records are taken at a time.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    heads: Literal[64, 128] = 64
    s_q: Annotated[int, within(1, MAX_QUERIES)] = 1
    topk: Annotated[int, within(64, MAX_TOPK, multiple_of=64)]
    extra: Literal["none", "fp8", "fp4"] = "none"
    extra_topk: Annotated[int, within(0, MAX_TOPK, multiple_of=64)] = 0
    attn_sink: bool = False
    topk_length: bool = False
    extra_topk_length: bool = False
    requests: Dim = "dynamic"
    tile: SparseTile | None = None

    def __post_init__(self) -> None:
        require_one_of(self.heads, "heads", (64, 128))
        require_int(self.s_q, "s_q", 1, MAX_QUERIES)
        require_int(self.topk, "topk", 64, MAX_TOPK, multiple_of=64)
        require_one_of(self.extra, "extra", ("none", "fp8", "fp4"))
        require_bool(self.attn_sink, "attn_sink")
        require_bool(self.topk_length, "topk_length")
        require_bool(self.extra_topk_length, "extra_topk_length")
        if self.extra == "none":
            if self.extra_topk != 0:
                raise InvalidSpec(
                    f"extra_topk is {self.extra_topk}, but there is no extra cache; legal: 0",
                    field="extra_topk",
                    legal=[0],
                )
            if self.extra_topk_length:
                raise InvalidSpec(
                    "extra_topk_length is true, but there is no extra cache; legal: false",
                    field="extra_topk_length",
                    legal=[False],
                )
        else:
            require_int(self.extra_topk, "extra_topk", 64, MAX_TOPK, multiple_of=64)
        require_dim(self.requests, "requests", self.MAX_EXTENT // (self.s_q * self.heads))
        require_sparse_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if no tile (or not the given one) fits ``target``'s buffers."""
        tiles_of(self, target)

    @property
    def formats(self) -> tuple[RecordFormat, ...]:
        """Of the records of the cache and of the extra one, if there is one."""
        return ("fp8",) if self.extra == "none" else ("fp8", self.extra)


def tiles_of(spec: MlaSparseDecodeSpec, target: Target) -> tuple[AttentionTiles, dict[str, Any]]:
    """The tiles and why; raises :class:`DoesNotFit` if nothing fits."""
    requests = NOMINAL_REQUESTS if spec.requests == DYNAMIC else int(spec.requests)
    return plan_sparse_attention(
        target,
        d_qk=WIDTH,
        formats=spec.formats,
        topks=(spec.topk, spec.extra_topk),
        tokens=requests * spec.s_q * spec.heads // 64,
        given=spec.tile,
    )


def parameters(spec: MlaSparseDecodeSpec) -> tuple[Parameter, ...]:
    """What a call takes: queries, caches with their lists, what these are limited by, output and lse."""
    requests = "requests" if spec.requests == DYNAMIC else spec.requests
    queries = (requests, spec.s_q, spec.heads)
    taken = [
        Parameter(name="q", role="in", dtype="bf16", shape=(*queries, WIDTH)),
        Parameter(name="k_cache", role="in", dtype="uint8", shape=("blocks", "page", 1, RECORD_BYTES["fp8"])),
        Parameter(name="indices", role="in", dtype="int32", shape=(requests, spec.s_q, spec.topk)),
    ]
    if spec.topk_length:
        taken.append(Parameter(name="topk_length", role="in", dtype="int32", shape=(requests,)))
    if spec.extra != "none":
        record = ("extra_blocks", "extra_page", 1, RECORD_BYTES[spec.extra])
        lists = (requests, spec.s_q, spec.extra_topk)
        taken.append(Parameter(name="extra_k_cache", role="in", dtype="uint8", shape=record))
        taken.append(Parameter(name="extra_indices", role="in", dtype="int32", shape=lists))
    if spec.extra_topk_length:
        taken.append(Parameter(name="extra_topk_length", role="in", dtype="int32", shape=(requests,)))
    if spec.attn_sink:
        taken.append(Parameter(name="attn_sink", role="in", dtype="fp32", shape=(spec.heads,)))
    return (
        *taken,
        softmax_scale(),
        Parameter(name="out", role="out", dtype="bf16", shape=(*queries, D_V)),
        Parameter(name="lse", role="out", dtype="fp32", shape=(requests, spec.heads, spec.s_q)),
    )


def build(spec: MlaSparseDecodeSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s core count and buffer sizes.

    Raises :class:`DoesNotFit` if no tile fits.
    """
    tiles, why = tiles_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, tiles, target.cube_cores),
        choices={**tiles.choices(), "why": why},
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MlaSparseDecodeSpec, tiles: AttentionTiles, cores: int) -> Any:
    """The TileLang function of ``spec``."""
    import tilelang.ascend.language as T

    entry = Entry("mla_sparse_decode", parameters(spec))
    requests = entry.extent("requests" if spec.requests == DYNAMIC else spec.requests)
    half, s_q = tiles.rows // 2, spec.s_q

    @T.macro
    def store_rows(state: Any, call: Any, place: Any, head: Any) -> None:
        if s_q == 1:
            T.copy(state.lse_ub[0:half], call.lse[place.token, head : head + half, 0])
        else:
            query = T.truncmod(place.token, s_q)
            T.copy(
                state.lse_ub[0:half, 0:1],
                call.lse[T.truncdiv(place.token, s_q), head : head + half, query : query + 1],
            )

    sets = [
        KeySet(
            fmt="fp8",
            topk=spec.topk,
            cache="k_cache",
            indices="indices",
            lengths="topk_length" if spec.topk_length else None,
            records=entry.extent("blocks") * entry.extent("page"),
        )
    ]
    if spec.extra != "none":
        sets.append(
            KeySet(
                fmt=spec.extra,
                topk=spec.extra_topk,
                cache="extra_k_cache",
                indices="extra_indices",
                lengths="extra_topk_length" if spec.extra_topk_length else None,
                records=entry.extent("extra_blocks") * entry.extent("extra_page"),
            )
        )
    return sparse_program(
        entry,
        tiles,
        cores,
        tokens=requests * s_q,
        heads=spec.heads,
        sets=sets,
        length_row=lambda token: T.truncdiv(token, s_q),
        store_rows=store_rows,
        lse_pitch=1 if s_q == 1 else SPARSE_PITCH,
        with_sink=spec.attn_sink,
        with_maxima=False,
    )


PAGE = KernelPage(
    computes="""
For each query token and head, over the records i of both lists that count, as one softmax,

    score[i] = softmax_scale * q . k[i]
    lse = ln sum exp(score)
    out = sum exp(score[i]) * k[i] / (sum exp(score) + exp(attn_sink))

where k[i] are the 512 values of a record times their scales, which are both key and value. An index is
`block * page + offset`. It counts if it is one of the first `topk_length[request]` (`extra_topk_length`;
all, without that argument) of its list, is not negative and names a record of the cache. One that appears
twice counts twice. A token without any record has output 0 and lse +inf. `lse` leaves the sink out; a sink of
+inf makes the output 0, one of -inf changes nothing. Scores and sums are fp32, the weights of a block of keys
are rounded to bf16 before they are multiplied with the values, relative to the largest score so far.

*Records.* See kv_record_pack. Values become bf16 without rounding: e4m3 and e2m1 values times their scales
are bf16 numbers, if they are not smaller than those get. A scale that is NaN makes its values NaN, and with
them every output of tokens whose lists name the record.

*How it runs.* A tile is 64 heads of a token; 128 heads are two tiles. Two vector cores gather a block of 128
(or 64) records, one transfer for each because values and scales are adjacent, widen them into the cube's
layout and copy them to its L1; the next block comes while this one is multiplied. Records that do not count
are not fetched. The extra list begins with a block of its own. Lists cost what their lengths say. Pages may
have any size, since an index names a record by itself; a cache has less than 2^31 of them. There is no
metadata and no split of a list over several cores.
""",
    arguments={
        "q": "[requests, s_q, heads, 512]",
        "k_cache": "[blocks, page, 1, 528] bytes, contiguous; an e4m3 or int8 cache as its uint8 view",
        "indices": "[requests, s_q, topk], which records of the cache each token sees",
        "topk_length": "[requests], with `topk_length`: how many indices of a request's lists count",
        "extra_k_cache": "[extra_blocks, extra_page, 1, 528 or 288] bytes, with `extra`",
        "extra_indices": "[requests, s_q, extra_topk], with `extra`",
        "extra_topk_length": "[requests], with `extra_topk_length`",
        "attn_sink": "[heads], with `attn_sink`: a score per head that weighs no value; may be infinite",
        "softmax_scale": "what scores are multiplied with, usually 512 ** -0.5; from -2^32 to 2^32",
        "out": "[requests, s_q, heads, 512]",
        "lse": "[requests, heads, s_q], natural logarithm",
    },
    tolerance="out within 1e-3 + 2.01/128 of the value and calc_diff 5e-6; lse within 1e-6 + 8.01/65536 of "
    "the value",
    facts=(
        "https://github.com/deepseek-ai/FlashMLA: flash_mla_interface.py and tests/ref.py (meaning of the "
        "arguments, sinks, lengths, rows without keys), tests/quant.py (records)",
    ),
    serves=("flash_mla.flash_mla_with_kvcache",),
    examples=(
        MlaSparseDecodeSpec(topk=640, attn_sink=True, topk_length=True),
        MlaSparseDecodeSpec(topk=128, extra="fp4", extra_topk=512, extra_topk_length=True, s_q=2),
    ),
)

FAMILY = Family(
    name="mla_sparse_decode",
    summary="sparse latent attention of a few query tokens per request over listed fp8 and fp4 cache records",
    spec_type=MlaSparseDecodeSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=SPARSE_ATTENTION_SOURCES,
    page=PAGE,
)
