"""Arguments of expert_mlp calls: groups of some rows, and in rows of no group what must not be read."""

from __future__ import annotations

import torch
from support.scaled_values import scaled_operand

from kaas.kernel_library.families.expert_mlp import ExpertMlpSpec
from kaas.kernel_library.references.group_spans import ALIGNMENT, spans_of
from kaas.kernel_library.references.number_formats import pack_pairs

EXACT_GATES = 7
"""Gates are multiples of 2^(this - 2), so 32: silu of one is itself, zero, or too small to be quantised."""


def layout_of(rows: tuple[int, ...]) -> torch.Tensor:
    """Ends of groups of ``rows`` rows."""
    ends, end = [], 0
    for count in rows:
        end = -(-end // ALIGNMENT) * ALIGNMENT + count
        ends.append(end)
    return torch.tensor(ends, dtype=torch.int32)


def expert_mlp_inputs(
    spec: ExpertMlpSpec,
    rows: tuple[int, ...],
    *,
    integers: bool,
    m: int | None = None,
    gate_exponent: int = EXACT_GATES,
) -> dict[str, torch.Tensor]:
    """All arguments by name; NaN in what is read, and marks in what is written, of rows of no group.

    With ``integers`` the sums of both products are exact in fp32; ``gate_exponent`` is that of a factor of
    all gates.
    """
    layout = layout_of(rows)
    if m is None:
        m = -(-max(int(layout[-1]), 1) // ALIGNMENT) * ALIGNMENT if spec.m == "dynamic" else int(spec.m)
    generator = torch.Generator().manual_seed(m + spec.hidden + spec.intermediate)
    x, x_scales = scaled_operand(m, spec.hidden, "e4m3", generator, integers=integers)
    weights = torch.rand(m, generator=generator)
    if integers:
        # Few terms in each sum: what is quantised has few bits, and so have the sums of the second product.
        kept = torch.rand(x.shape, generator=generator) < 0.1
        x = torch.where(kept, x.float(), 0.0).to(x.dtype)
        weights = torch.tensor([0.0, 0.5, 1.0, 2.0])[torch.randint(0, 4, (m,), generator=generator)]
    owned = torch.zeros(m, dtype=torch.bool)
    for start, end in spans_of(layout, m):
        owned[start:end] = True
    x = torch.where(owned[:, None], x.float(), torch.nan).to(x.dtype)
    x_scales[~owned], weights[~owned] = 255, torch.nan
    w1, w1_scales, w2, w2_scales = [], [], [], []
    for _ in rows:
        values, scales = scaled_operand(
            2 * spec.intermediate, spec.hidden, spec.dtype_w, generator, integers=integers
        )
        if integers:
            scales[: spec.intermediate] += gate_exponent % 256
        w1.append(values)
        w1_scales.append(pack_pairs(scales))
        values, scales = scaled_operand(
            spec.hidden, spec.intermediate, spec.dtype_w, generator, integers=integers
        )
        w2.append(values)
        w2_scales.append(pack_pairs(scales))
    return {
        "x": x,
        "x_scales": pack_pairs(x_scales),
        "w1": torch.stack(w1),
        "w1_scales": torch.stack(w1_scales),
        "w2": torch.stack(w2),
        "w2_scales": torch.stack(w2_scales),
        "weights": weights,
        "grouped_layout": layout,
        "h": torch.full((m, spec.intermediate), 0x5A, dtype=torch.uint8).view(torch.float8_e4m3fn),
        "h_scales": torch.full((spec.intermediate // 64, m), 0x1234, dtype=torch.int16),
        "y": torch.full((m, spec.hidden), 77.0, dtype=torch.bfloat16),
    }
