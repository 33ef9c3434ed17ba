"""Calls like an accepted one: however calls follow each other, each comes out as if it were the first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kaas.client import accepted_call
from kaas.client.launch_plan import LaunchPlan
from kaas.proto.errors import InvalidArgument
from kaas.proto.launch import LaunchMetadata, Parameter, SignatureArgument

PARAMETERS = (
    Parameter(name="x", role="in", dtype="fp32", shape=("m", 8), alignment=32),
    Parameter(name="count", role="scalar", dtype="int32"),
    Parameter(name="rows", role="in", dtype="fp32", shape=("m",), alignment=32, may_be_empty=True),
    Parameter(name="y", role="out", dtype="fp32", shape=("m", 4), alignment=32),
)
SIGNATURE = (
    SignatureArgument(name="x", kind="pointer", dtype="fp32"),
    SignatureArgument(name="rows", kind="pointer", dtype="fp32"),
    SignatureArgument(name="y", kind="pointer", dtype="fp32"),
    SignatureArgument(name="count", kind="scalar", dtype="int32"),
    SignatureArgument(name="m", kind="symbol", dtype="int32"),
)


def plan() -> LaunchPlan:
    return LaunchPlan(
        LaunchMetadata(
            entry="k", block_count=1, dynamic_ub_bytes=0, parameters=PARAMETERS, signature=SIGNATURE
        )
    )


def ordinary(m: int = 16, **other: Any) -> list[Any]:
    given = {"x": torch.ones(m, 8), "count": 3, "rows": torch.ones(m), "y": torch.ones(m, 4)}
    return list((given | other).values())


MEMORY = torch.ones(64, 16)
BASE = torch.ones(16 * 8 + 8)
CALLS: dict[str, list[Any]] = {
    "ordinary": ordinary(),
    "the same kinds elsewhere": ordinary(),
    "other rows": ordinary(48),
    "another count": ordinary(count=-7),
    "a count that is an array": ordinary(count=np.int64(5)),
    "a count too large": ordinary(count=2**31),
    "a count that is no integer": ordinary(count=1.5),
    "rows that do not agree": ordinary(rows=torch.ones(17)),
    "too many dimensions": ordinary(x=torch.ones(16, 8, 1)),
    "wrong columns": ordinary(y=torch.ones(16, 5)),
    "another dtype": ordinary(x=torch.ones(16, 8, dtype=torch.float16)),
    "not contiguous": ordinary(x=torch.ones(8, 16).T),
    "a bad address": ordinary(x=BASE[1:129].view(16, 8)),
    "a gradient wanted of the output": ordinary(y=torch.ones(16, 4, requires_grad=True)),
    "a gradient wanted of an input": ordinary(x=torch.ones(16, 8, requires_grad=True)),
    "a parameter": ordinary(x=torch.nn.Parameter(torch.ones(16, 8))),
    "negated lazily": ordinary(x=torch.ones(16, 8, dtype=torch.complex64).conj().imag),
    "an output over an input": ordinary(x=MEMORY[:8].view(16, 8), y=MEMORY[4:8].view(16, 4)),
    "an output beside an input": ordinary(x=MEMORY[:8].view(16, 8), y=MEMORY[8:12].view(16, 4)),
    "nothing": ordinary(0),
    "NumPy arrays": [np.ones((16, 8), np.float32), 3, np.ones(16, np.float32), np.ones((16, 4), np.float32)],
    "one NumPy array": ordinary(x=np.ones((16, 8), np.float32)),
    "a sparse tensor": ordinary(x=torch.ones(16, 8).to_sparse()),
    "a tensor without memory": ordinary(x=torch.ones(16, 8, device="meta")),
    "no tensor": ordinary(x=[1.0]),
    "too few": ordinary()[:3],
    "too many": [*ordinary(), 1],
}


def outcome(of: LaunchPlan, arguments: list[Any], place: str = "cpu") -> bytes | str | None:
    try:
        block = of.pack(arguments, place)
    except InvalidArgument as error:
        return error.message
    return None if block is None else block.raw[: of.size]


@pytest.mark.parametrize("name", CALLS)
def test_a_call_comes_out_the_same_after_any_other(name: str) -> None:
    alone = outcome(plan(), CALLS[name])
    for before in CALLS.values():
        kernel = plan()
        outcome(kernel, before)
        assert outcome(kernel, CALLS[name]) == alone
        assert outcome(kernel, CALLS[name]) == alone


@pytest.mark.parametrize("name", CALLS)
def test_a_call_for_another_place_is_refused_after_one_that_was_accepted(name: str) -> None:
    kernel = plan()
    outcome(kernel, CALLS[name])
    assert isinstance(outcome(kernel, CALLS["ordinary"], "npu:0"), str)


def test_the_calls_differ() -> None:
    """Else the comparisons above would prove little."""
    found = [outcome(plan(), arguments) for arguments in CALLS.values()]
    assert len(set(found)) > len(CALLS) // 2
    assert sum(isinstance(one, bytes) for one in found) >= 8


def test_a_tensor_that_was_changed_in_place_is_looked_at_again() -> None:
    kernel = plan()
    arguments = ordinary()
    accepted = outcome(kernel, arguments)
    assert outcome(kernel, arguments) == accepted
    arguments[0].resize_(15, 8)
    assert "'rows' has shape [16]" in str(outcome(kernel, arguments))
    arguments[0].resize_(16, 8)
    arguments[3].requires_grad_()
    assert "requires a gradient" in str(outcome(kernel, arguments))


def test_many_shapes_are_all_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted_call, "MOST_SHAPES", 3)
    kernel = plan()
    for m in [*range(1, 9), *range(1, 9)]:
        arguments = ordinary(m)
        assert outcome(kernel, arguments) == outcome(plan(), arguments)
