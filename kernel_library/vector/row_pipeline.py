"""Row pipeline: the loop of a vector kernel over its rows, with the flags of its ring of UB stages."""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macro below is a language of its own: what it annotates and calls are no Python types.

from collections.abc import Callable
from typing import Any

from kaas.kernel_library.vector.row_plan import RowPlan

ROW_KERNEL_SOURCES = (
    "kaas.kernel_library.choice",
    "kaas.kernel_library.entry",
    "kaas.kernel_library.vector.row_pipeline",
    "kaas.kernel_library.vector.row_plan",
)
"""Modules that decide what a family built on this pipeline generates."""

PASS_CONFIGS: dict[str, Any] = {
    # The program places every flag itself: no solver runs, and lowering takes a fraction of a second.
    "tl.enable_auto_schedule": False,
    # UB buffers live across iterations on several pipes, which TileLang's liveness analysis does not see.
    "tl.disable_shared_memory_reuse": True,
}


def row_stage(
    load: Callable[[Any, Any, Any, Any], Any],
    compute: Callable[[Any, Any, Any, Any], Any],
    store: Callable[[Any, Any, Any, Any], Any],
) -> Any:
    """A macro ``stage(state, slot, first, count)``: one group of rows through one stage of the ring.

    The macros are those of :func:`row_pipeline`. The caller sets ``MTE3_MTE2`` of every slot before the first
    group and waits for it after the last.
    """
    import tilelang.ascend.language as T

    @T.macro
    def stage(state: Any, slot: Any, first: Any, count: Any) -> None:
        T.ascend_wait_flag("MTE3_MTE2", slot)
        load(state, slot, first, count)
        T.ascend_set_flag("MTE2_V", slot)
        T.ascend_wait_flag("MTE2_V", slot)
        compute(state, slot, first, count)
        T.ascend_set_flag("V_MTE3", slot)
        T.ascend_wait_flag("V_MTE3", slot)
        store(state, slot, first, count)
        T.ascend_set_flag("MTE3_MTE2", slot)

    return stage


def row_pipeline(
    plan: RowPlan,
    cores: int,
    total: Any,
    *,
    load: Callable[[Any, Any, Any, Any], Any],
    compute: Callable[[Any, Any, Any, Any], Any],
    store: Callable[[Any, Any, Any, Any], Any],
    prepare: Callable[[Any], Any] | None = None,
    limit: Callable[[Any, Any, Any], Any] | None = None,
    power_of_two: bool = False,
) -> Any:
    """A macro ``run(state, core)`` that takes ``total`` rows through the ring of ``plan``.

    ``load``, ``compute`` and ``store`` are macros of ``(state, slot, first, count)``: rows ``first`` to
    ``first + count`` of global memory, in UB stage ``slot``. ``load`` issues on MTE2 only, ``compute`` on V
    only (one ``T.SimdVF`` or more), ``store`` on MTE3 only. ``state`` is whatever the caller's macros share
    (buffers). ``prepare(state)`` loads what stays in UB for good, on MTE2, before the first stage.

    ``limit``, a macro of ``(state, first, count)``, returns how many of a group's rows there are to work on:
    the rest is left out, the whole stage if there are none. Scalar code calls it with ascending ``first``.
    ``power_of_two``: groups have that many rows but for the last, so that none crosses a multiple of
    ``plan.rows``, which must be a power of two then.

    ``total`` is an expression; groups are shared out over ``cores`` blocks. A row's result must not depend on
    its group, so that it depends on neither the plan nor the core count.
    """
    import tilelang.ascend.language as T

    stages, most = plan.stages, plan.rows
    stage = row_stage(load, compute, store)

    @T.macro
    def run(state: Any, core: Any) -> None:
        first = T.alloc_var("int32")
        count = T.alloc_var("int32")
        per_stage = T.alloc_var("int32")
        turns = T.alloc_var("int32")
        # Few rows are spread over all cores instead of filling whole stages on some of them.
        per_stage = T.min(most, T.max(T.truncdiv(total + cores - 1, cores), 1))
        if power_of_two:
            per_stage = _power_of_two_below(per_stage, most)
        for slot in T.serial(stages):
            T.ascend_set_flag("MTE3_MTE2", slot)
        if prepare is not None:
            prepare(state)
        # A variable, because TVM turns a loop whose extent is known to be 0 or 1 into its body.
        turns = T.truncdiv(T.truncdiv(total + per_stage - 1, per_stage) + cores - 1 - core, cores)
        for turn in T.serial(turns):
            first = (turn * cores + core) * per_stage
            count = T.min(per_stage, total - first)
            if limit is None:
                stage(state, turn % stages, first, count)
            else:
                count = limit(state, first, count)
                if count > 0:
                    stage(state, turn % stages, first, count)
        for slot in T.serial(stages):
            T.ascend_wait_flag("MTE3_MTE2", slot)

    return run


def _power_of_two_below(rows: Any, most: int) -> Any:
    """The largest power of two up to ``rows``, which is 1 to ``most``."""
    import tilelang.ascend.language as T

    found = T.int32(1)
    for exponent in range(1, most.bit_length()):
        found = T.if_then_else(rows >= 2**exponent, T.int32(2**exponent), found)
    return found
