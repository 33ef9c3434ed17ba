"""Rows and records of a KV cache that go to the edges of their formats."""

from __future__ import annotations

import torch

from kaas.kernel_library.references.kv_records import WIDTH


def wide_rows(tokens: int, seed: int) -> torch.Tensor:
    """bf16 rows whose magnitudes spread over many powers of two."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn((tokens, WIDTH), generator=generator)
    return (values * torch.exp(torch.randn((tokens, WIDTH), generator=generator) * 4)).bfloat16()


def random_records(tokens: int, width: int, seed: int) -> torch.Tensor:
    """Records of any bytes: every code of values and scales, NaN among them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (tokens, width), generator=generator).to(torch.uint8)
