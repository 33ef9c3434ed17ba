"""Index batches: indices that the scalar pipe reads, brought to UB some hundred rows at a time.

Where a row goes, or comes from, is data. The scalar pipe must have it before it can issue the row's transfer,
so indices arrive in batches: one latency for many rows instead of one for each.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macro below is a language of its own: what it annotates and calls are no Python types.

from collections.abc import Callable
from typing import Any

INDEX_BYTES = 4
BLOCK_BYTES = 32
"""UB transfers start at multiples of this."""


def index_pitch(columns: int) -> int:
    """int32 or fp32 elements of a UB row that holds ``columns`` of them: whole 32-byte blocks."""
    per_block = BLOCK_BYTES // INDEX_BYTES
    return -(-columns // per_block) * per_block


def index_batches(
    batch: int,
    cores: int,
    total: Any,
    *,
    event: int,
    load: Callable[[Any, Any, Any], Any],
    work: Callable[[Any, Any, Any, Any], Any],
) -> Any:
    """A macro ``run(state, core)`` that takes ``total`` rows of indices in batches of at most ``batch``.

    ``load(state, first, count)`` issues on MTE2 only. ``work(state, turn, first, count)`` reads the indices
    on the scalar pipe; another pipe that reads them needs a flag of its own. ``turn`` counts this core's
    batches, all of which but the last are full. ``event`` is the id of the two flags between S and MTE2.
    """
    import tilelang.ascend.language as T

    @T.macro
    def run(state: Any, core: Any) -> None:
        first = T.alloc_var("int32")
        count = T.alloc_var("int32")
        per_batch = T.alloc_var("int32")
        turns = T.alloc_var("int32")
        per_batch = T.min(batch, T.max(T.truncdiv(total + cores - 1, cores), 1))
        # A variable, because TVM turns a loop whose extent is known to be 0 or 1 into its body.
        turns = T.truncdiv(T.truncdiv(total + per_batch - 1, per_batch) + cores - 1 - core, cores)
        T.ascend_set_flag("S_MTE2", event)
        for turn in T.serial(turns):
            first = (turn * cores + core) * per_batch
            count = T.min(per_batch, total - first)
            T.ascend_wait_flag("S_MTE2", event)
            load(state, first, count)
            T.ascend_set_flag("MTE2_S", event)
            T.ascend_wait_flag("MTE2_S", event)
            work(state, turn, first, count)
            T.ascend_set_flag("S_MTE2", event)
        T.ascend_wait_flag("S_MTE2", event)

    return run
