"""mla_sparse_prefill: attention of many query tokens, each over the keys that its index list names."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any, Literal

from kaas.kernel_library.attention.attention_softmax import softmax_scale
from kaas.kernel_library.attention.attention_tiles import AttentionTiles
from kaas.kernel_library.attention.gathered_keys import KeySet
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
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

MAX_TOPK = 65536
NOMINAL_TOKENS = 4096
"""How many query tokens a dynamic number of them is taken to be."""


class MlaSparsePrefillSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mla_sparse_prefill"
):
    """Sparse multi-head latent attention: each query token sees the keys of its own list, all heads the same.

    A key is ``d_qk`` bf16 values, of which the first 512 are also the value. A list has ``topk`` indices, a
    multiple of 64; ``topk_length`` says that a call tells how many of each count. ``attn_sink`` adds one
    score per head that weighs no value. ``tile`` overrides how many keys are taken at a time.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    heads: Literal[64, 128] = 64
    d_qk: Literal[512, 576] = 512
    topk: Annotated[int, within(64, MAX_TOPK, multiple_of=64)]
    attn_sink: bool = False
    topk_length: bool = False
    tokens: Dim = "dynamic"
    tile: SparseTile | None = None

    def __post_init__(self) -> None:
        require_one_of(self.heads, "heads", (64, 128))
        require_one_of(self.d_qk, "d_qk", (512, 576))
        require_int(self.topk, "topk", 64, MAX_TOPK, multiple_of=64)
        require_bool(self.attn_sink, "attn_sink")
        require_bool(self.topk_length, "topk_length")
        require_dim(self.tokens, "tokens")
        require_sparse_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if no tile (or not the given one) fits ``target``'s buffers."""
        tiles_of(self, target)


def tiles_of(spec: MlaSparsePrefillSpec, target: Target) -> tuple[AttentionTiles, dict[str, Any]]:
    """The tiles and why; raises :class:`DoesNotFit` if nothing fits."""
    tokens = NOMINAL_TOKENS if spec.tokens == DYNAMIC else int(spec.tokens)
    return plan_sparse_attention(
        target,
        d_qk=spec.d_qk,
        formats=("bf16",),
        topks=(spec.topk,),
        tokens=tokens * spec.heads // 64,
        given=spec.tile,
    )


def parameters(spec: MlaSparsePrefillSpec) -> tuple[Parameter, ...]:
    """What a call takes: queries, keys, lists, what they are limited by, and the three results."""
    tokens = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    rows = (tokens, spec.heads)
    taken = [
        Parameter(name="q", role="in", dtype="bf16", shape=(*rows, spec.d_qk)),
        Parameter(name="kv", role="in", dtype="bf16", shape=("kv_tokens", 1, spec.d_qk), may_be_empty=True),
        Parameter(name="indices", role="in", dtype="int32", shape=(tokens, 1, spec.topk)),
    ]
    if spec.attn_sink:
        taken.append(Parameter(name="attn_sink", role="in", dtype="fp32", shape=(spec.heads,)))
    if spec.topk_length:
        taken.append(Parameter(name="topk_length", role="in", dtype="int32", shape=(tokens,)))
    return (
        *taken,
        softmax_scale(),
        Parameter(name="out", role="out", dtype="bf16", shape=(*rows, D_V)),
        Parameter(name="max_logits", role="out", dtype="fp32", shape=rows),
        Parameter(name="lse", role="out", dtype="fp32", shape=rows),
    )


def build(spec: MlaSparsePrefillSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s core count and buffer sizes.

    Raises :class:`DoesNotFit` if no tile fits.
    """
    tiles, why = tiles_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, tiles, target.cube_cores),
        choices={**tiles.choices(), "why": why},
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MlaSparsePrefillSpec, tiles: AttentionTiles, cores: int) -> Any:
    """The TileLang function of ``spec``."""
    import tilelang.ascend.language as T

    entry = Entry("mla_sparse_prefill", parameters(spec))
    half = tiles.rows // 2

    @T.macro
    def store_rows(state: Any, call: Any, place: Any, head: Any) -> None:
        T.copy(state.lse_ub[0:half], call.lse[place.token, head : head + half])
        T.copy(state.maxima[0:half], call.max_logits[place.token, head : head + half])

    keys = KeySet(
        fmt="bf16",
        topk=spec.topk,
        cache="kv",
        indices="indices",
        lengths="topk_length" if spec.topk_length else None,
        records=entry.extent("kv_tokens"),
    )
    return sparse_program(
        entry,
        tiles,
        cores,
        tokens=entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens),
        heads=spec.heads,
        sets=(keys,),
        length_row=lambda token: token,
        store_rows=store_rows,
        lse_pitch=1,
        with_sink=spec.attn_sink,
        with_maxima=True,
    )


PAGE = KernelPage(
    computes="""
For each query token and head, over the indices i of the token's list that count,

    score[i] = softmax_scale * q . kv[i]
    max_logits = max score      lse = ln sum exp(score)
    out = sum exp(score[i]) * kv[i][0:512] / (sum exp(score) + exp(attn_sink))

An index counts if it is one of the first `topk_length[token]` (all, without that argument), and names a key:
a negative one, or one that is `kv_tokens` or more, counts for nothing. One that appears twice counts twice. A
token without any key has output 0, lse +inf and max_logits -inf. `lse` leaves the sink out; a sink of
+inf makes the output 0, one of -inf changes nothing. Scores and sums are fp32, the weights of a block of keys
are rounded to bf16 before they are multiplied with the values, relative to the largest score so far.

*How it runs.* A tile is 64 heads of a token; 128 heads are two tiles. Two vector cores gather a block of 128
(or 64) keys, a transfer for each, lay them out for the cube and copy them to its L1; the next block comes
while this one is multiplied. Keys that do not count are not fetched. The running output stays in UB in fp32,
where a larger score rescales it. Lists cost what `topk_length` says, not `topk`. No number of
cores is special.
""",
    arguments={
        "q": "[tokens, heads, d_qk]",
        "kv": "[kv_tokens, 1, d_qk], the keys, whose first 512 values are the values",
        "indices": "[tokens, 1, topk], which keys each token sees",
        "attn_sink": "[heads], with `attn_sink`: a score per head that weighs no value; may be infinite",
        "topk_length": "[tokens], with `topk_length`: how many of a token's indices count; 0 to `topk`",
        "softmax_scale": "what scores are multiplied with, usually d_qk ** -0.5; from -2^32 to 2^32",
        "out": "[tokens, heads, 512]",
        "max_logits": "[tokens, heads], the largest score",
        "lse": "[tokens, heads], natural logarithm",
    },
    tolerance="out within 8e-4 + 3.01/128 of the value and calc_diff 1e-5; max_logits and lse within 1e-6 + "
    "2.01/65536 of the value",
    facts=(
        "https://github.com/deepseek-ai/FlashMLA: flash_mla_interface.py and tests/ref.py (meaning of the "
        "arguments, sinks, lengths, rows without keys), tests/test-sparse-prefill.py (tolerances)",
    ),
    serves=("flash_mla.flash_mla_sparse_fwd",),
    examples=(
        MlaSparsePrefillSpec(topk=640, attn_sink=True, topk_length=True),
        MlaSparsePrefillSpec(heads=128, d_qk=576, topk=2048),
    ),
)

FAMILY = Family(
    name="mla_sparse_prefill",
    summary="sparse latent attention of many query tokens over the keys that their index lists name",
    spec_type=MlaSparsePrefillSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=SPARSE_ATTENTION_SOURCES,
    page=PAGE,
)
