"""Numbers, vector registers and masks of the CPU twin, against NumPy and torch."""

# ruff: noqa: E501 (device code keeps its lines)

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from support.twin_launch import Twin, TwinFailure, TwinKernels, templates_dir

from kaas.compiler.twin.install import ensure_twin_home

REGISTER_BYTES = 256

# C type, NumPy type of the bits, torch type (None for plain integers of NumPy).
TYPES = {
    "f32": ("float", np.float32, torch.float32),
    "f16": ("half", np.uint16, torch.float16),
    "bf16": ("bfloat16_t", np.uint16, torch.bfloat16),
    "e4m3": ("float8_e4m3_t", np.uint8, torch.float8_e4m3fn),
    "e5m2": ("float8_e5m2_t", np.uint8, torch.float8_e5m2),
    "s32": ("int32_t", np.int32, None),
    "u32": ("uint32_t", np.uint32, None),
    "s16": ("int16_t", np.int16, None),
    "u16": ("uint16_t", np.uint16, None),
    "s8": ("int8_t", np.int8, None),
    "u8": ("uint8_t", np.uint8, None),
}
TORCH_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def width(kind: str) -> int:
    return np.dtype(TYPES[kind][1]).itemsize


def to_floats(bits: np.ndarray, kind: str) -> np.ndarray:
    """Values of a small float type as float32."""
    carrier = np.ascontiguousarray(bits).view({1: np.uint8, 2: np.int16, 4: np.int32}[bits.itemsize])
    return torch.from_numpy(carrier.copy()).view(TYPES[kind][2]).float().numpy()


def from_floats(values: np.ndarray, kind: str) -> np.ndarray:
    """float32 values rounded to nearest even, as bits of a small float type."""
    rounded = torch.from_numpy(np.asarray(values, dtype=np.float32)).to(TYPES[kind][2])
    return rounded.view(TORCH_BITS[width(kind)]).numpy().view(TYPES[kind][1])


@dataclass(frozen=True)
class Probe:
    """A kernel that runs `body` as one vector function over UB areas a, b (512 bytes each) and out (1024 bytes)."""

    name: str
    body: str

    def source(self) -> str:
        return f"""
__simd_vf__ inline void {self.name}_vf(__ubuf__ uint8_t* a, __ubuf__ uint8_t* b, __ubuf__ uint8_t* out, uint32_t n) {{
  {self.body}
}}
extern "C" __global__ __vector__ void probe_{self.name}(__gm__ uint8_t* A, __gm__ uint8_t* B, __gm__ uint8_t* OUT, int32_t n) {{
  asc_init();
  __ubuf__ uint8_t* ub = (__ubuf__ uint8_t*)0;
  for (int i = 0; i < 512; ++i) {{ ub[i] = A[i]; ub[512 + i] = B[i]; }}
  for (int i = 0; i < 1024; ++i) ub[1024 + i] = 0xEE;
  asc_sync_notify(PIPE_S, PIPE_V, static_cast<event_t>(0));
  asc_sync_wait(PIPE_S, PIPE_V, static_cast<event_t>(0));
  {self.name}_vf(ub, ub + 512, ub + 1024, n);
  asc_sync_notify(PIPE_V, PIPE_S, static_cast<event_t>(0));
  asc_sync_wait(PIPE_V, PIPE_S, static_cast<event_t>(0));
  for (int i = 0; i < 1024; ++i) OUT[i] = ub[1024 + i];
}}
"""


def load(kind: str, variable: str, area: str) -> str:
    ctype = TYPES[kind][0]
    return f"auto {variable} = V::vlds_norm<{ctype}>((__ubuf__ {ctype}*){area}, 0);"


def store(kind: str, value: str, offset: int = 0) -> str:
    ctype, bits = TYPES[kind][0], width(kind) * 8
    return f"V::vsts_norm<{ctype}>({value}, (__ubuf__ {ctype}*)(out + {offset}), 0, asc_create_mask_b{bits}(PAT_ALL));"


def tail_mask(kind: str) -> str:
    return f"vector_bool m = asc_update_mask_b{width(kind) * 8}(n);"


BINARY = ("vadd", "vsub", "vmul", "vmax", "vmin")
INTEGER_BINARY = ("vand", "vor", "vxor")
FLOATS = ("f32", "f16", "bf16")
INTEGERS = ("s32", "u32", "s16", "u16", "s8", "u8")
BINARY_CASES = [(op, kind) for op in BINARY for kind in FLOATS + INTEGERS]
BINARY_CASES += [(op, kind) for op in INTEGER_BINARY for kind in INTEGERS]
BINARY_CASES += [("vdiv", kind) for kind in FLOATS]
UNARY_CASES = [(op, kind) for op in ("vabs", "vneg", "vrelu") for kind in (*FLOATS, "s32", "s16")]
UNARY_CASES += [(op, kind) for op in ("vexp", "vln", "vsqrt") for kind in ("f32", "f16")]
COMPARES = ("eq", "ne", "gt", "ge", "lt", "le")
COMPARE_KINDS = ("f32", "bf16", "s32", "u16", "s8")
ROUNDINGS = ("ROUND_R", "ROUND_A", "ROUND_F", "ROUND_C", "ROUND_Z")
NARROWINGS = [
    ("f32", "f16", "PART_EVEN"),
    ("f32", "bf16", "PART_ODD"),
    ("f32", "e4m3", "PART_P1"),
    ("f32", "e5m2", "PART_P3"),
]
WIDENINGS = [
    ("f16", "f32", "PART_EVEN"),
    ("bf16", "f32", "PART_ODD"),
    ("e4m3", "f32", "PART_P2"),
    ("s16", "s32", "PART_ODD"),
    ("u8", "u16", "PART_EVEN"),
]
REDUCTIONS = [
    (op, kind)
    for op in ("vcadd", "vcmax", "vcmin", "vcgmax", "vcgmin", "vcgadd")
    for kind in ("f32", "f16", "s32")
]
LOADS = {
    "brc_elem": ("bf16", lambda a: np.repeat(a[:1], 128)),
    "upsample": ("f16", lambda a: np.repeat(a[:64], 2)),
    "downsample": ("u8", lambda a: a[:512:2]),
    "unpack": ("u16", lambda a: np.stack([a[:64], np.zeros(64, a.dtype)], 1).ravel()),
    "unpack4": ("u8", lambda a: np.stack([a[:64]] + [np.zeros(64, a.dtype)] * 3, 1).ravel()),
    "brc_datablock": ("f32", lambda a: np.tile(a[:8], 8)),
    "brc_elem2datablock": ("u16", lambda a: np.repeat(a[:8], 16)),
}

PROBES = [
    *(
        Probe(
            f"{op}_{kind}",
            f"{load(kind, 'x', 'a')} {load(kind, 'y', 'b')} {tail_mask(kind)}"
            f"auto r = V::{op}(x, y, m, MODE_ZEROING); {store(kind, 'r')}",
        )
        for op, kind in BINARY_CASES
    ),
    *(
        Probe(
            f"{op}_{kind}",
            f"{load(kind, 'x', 'a')} {tail_mask(kind)}"
            f"auto r = V::{op}(x, m, MODE_ZEROING); {store(kind, 'r')}",
        )
        for op, kind in UNARY_CASES
    ),
    *(
        Probe(
            f"vcmp_{op}_{kind}",
            f"{load(kind, 'x', 'a')} {load(kind, 'y', 'b')} {tail_mask(kind)}"
            f"V::psts_norm(V::vcmp_{op}(x, y, m), (__ubuf__ uint32_t*)out, 0);",
        )
        for op in COMPARES
        for kind in COMPARE_KINDS
    ),
    *(
        Probe(
            f"narrow_{src}_{dst}_{rounding}_{sat}",
            f"{load(src, 'x', 'a')} {tail_mask(src)}"
            f"auto r = V::vcvt<{TYPES[dst][0]}>(x, m, {rounding}, {sat}, {part}, MODE_ZEROING); {store(dst, 'r')}",
        )
        for src, dst, part in NARROWINGS
        for rounding in ROUNDINGS
        for sat in ("RS_ENABLE", "RS_DISABLE")
    ),
    *(
        Probe(
            f"to_{dst}_{rounding}_{sat}",
            f"{load('f32', 'x', 'a')} {tail_mask('f32')}"
            f"auto r = V::vcvt<{TYPES[dst][0]}>(x, m, {rounding}, {sat}"
            f"{', PART_EVEN' if dst == 's16' else ''}, MODE_ZEROING); {store(dst, 'r')}",
        )
        for dst in ("s32", "s16")
        for rounding in ROUNDINGS
        for sat in ("RS_ENABLE", "RS_DISABLE")
    ),
    *(
        Probe(
            f"widen_{src}_{dst}",
            f"{load(src, 'x', 'a')} {tail_mask(src)}"
            f"auto r = V::vcvt<{TYPES[dst][0]}>(x, m, {part}, MODE_ZEROING); {store(dst, 'r')}",
        )
        for src, dst, part in WIDENINGS
    ),
    Probe(
        "s32_to_f32",
        f"{load('s32', 'x', 'a')} {tail_mask('s32')}"
        f"auto r = V::vcvt<float>(x, m, ROUND_R, MODE_ZEROING); {store('f32', 'r')}",
    ),
    Probe(
        "s32_to_u8",
        f"{load('s32', 'x', 'a')} {tail_mask('s32')}"
        f"auto r = V::vcvt<uint8_t>(x, m, RS_ENABLE, PART_P0, MODE_ZEROING); {store('u8', 'r')}",
    ),
    *(
        Probe(
            f"{op}_{kind}",
            f"{load(kind, 'x', 'a')} {tail_mask(kind)}"
            f"auto r = V::{op}(x, m, MODE_ZEROING); {store(kind, 'r')}",
        )
        for op, kind in REDUCTIONS
    ),
    Probe(
        "vcadd_s16",
        f"{load('s16', 'x', 'a')} {tail_mask('s16')}"
        f"auto r = V::vcadd(x, m, MODE_ZEROING); {store('s32', 'r')}",
    ),
    *(
        Probe(
            f"load_{name}",
            f"auto x = V::vlds_{name}<{TYPES[kind][0]}>((__ubuf__ {TYPES[kind][0]}*)a, 0);{store(kind, 'x')}",
        )
        for name, (kind, _) in LOADS.items()
    ),
    Probe(
        "load_postupdate",
        "auto first = V::vlds_norm_postupdate<float>((__ubuf__ float*)a, 64);"
        f"auto second = V::vlds_norm_postupdate<float>(first.v1, 64); {store('f32', 'first.v0')}"
        f"{store('f32', 'second.v0', 256)}",
    ),
    Probe(
        "load_x2",
        "auto p = V::vld_x2<uint16_t>((__ubuf__ uint16_t*)a, DINTLV_B16);"
        f"{store('u16', 'p.v0')} {store('u16', 'p.v1', 256)}",
    ),
    Probe(
        "store_pack",
        f"{load('u32', 'x', 'a')} {tail_mask('u32')}"
        "V::vsts_pack_b32<uint32_t>(x, (__ubuf__ uint32_t*)out, 0, m);",
    ),
    Probe(
        "store_pack_quarter",
        f"{load('u32', 'x', 'a')} {tail_mask('u32')}"
        "V::vsts_pack_quarter<uint32_t>(x, (__ubuf__ uint32_t*)out, 0, m);",
    ),
    Probe(
        "store_quarter_e4m3",
        f"{load('f32', 'x', 'a')} {tail_mask('f32')}"
        "auto q = V::vcvt<float8_e4m3_t>(x, m, ROUND_R, RS_ENABLE, PART_P0, MODE_ZEROING);"
        "V::vsts_pack_quarter<float8_e4m3_t>(q, (__ubuf__ float8_e4m3_t*)out, 0, m);",
    ),
    Probe(
        "store_first",
        f"{load('f16', 'x', 'a')} {tail_mask('f16')}V::vsts_1st<half>(x, (__ubuf__ half*)(out + 6), 0, m);",
    ),
    Probe(
        "store_masked",
        f"{load('f32', 'x', 'a')} {tail_mask('f32')}V::vsts_norm<float>(x, (__ubuf__ float*)out, 0, m);",
    ),
    Probe(
        "store_blocks",
        f"{load('u16', 'x', 'a')} {tail_mask('u16')}"
        "auto end = V::vsstb(x, (__ubuf__ uint16_t*)out, (3 << 16) | 2, m, POST_UPDATE);"
        "V::vsts_1st<uint16_t>(x, end, 0, m);",
    ),
    Probe(
        "gather",
        f"{load('u32', 'i', 'b')} {tail_mask('f32')}"
        f"auto r = V::vgather2((__ubuf__ float*)a, i, m); {store('f32', 'r')}",
    ),
    Probe(
        "gather_bytes",
        f"{load('u16', 'i', 'b')} {tail_mask('u16')}"
        f"auto r = V::vgather2((__ubuf__ int8_t*)a, i, m); {store('s16', 'r')}",
    ),
    Probe(
        "gather_blocks",
        f"{load('u32', 'i', 'b')}auto r = V::vgatherb<uint8_t>((__ubuf__ uint8_t*)a, i); {store('u8', 'r')}",
    ),
    Probe(
        "scatter",
        f"{load('f32', 'x', 'a')} {load('u32', 'i', 'b')} {tail_mask('f32')}"
        "V::vscatter<float>(x, (__ubuf__ float*)out, i, m);",
    ),
    Probe(
        "permute",
        f"{load('u16', 'x', 'a')} {load('u16', 'y', 'b')}"
        "auto p = V::vintlv(x, y); auto q = V::vdintlv(x, y);"
        f"{store('u16', 'p.v0')} {store('u16', 'p.v1', 256)} {store('u16', 'q.v0', 512)} {store('u16', 'q.v1', 768)}",
    ),
    Probe(
        "pack",
        f"{load('u32', 'x', 'a')} auto l = V::vpack<uint16_t>(x, LOWER); auto h = V::vpack<uint16_t>(x, HIGHER);"
        f"{store('u16', 'l')} {store('u16', 'h', 256)}",
    ),
    Probe(
        "unpack",
        f"{load('s16', 'x', 'a')} auto l = V::vunpack(x, LOWER); auto h = V::vunpack(x, HIGHER);"
        f"{store('s32', 'l')} {store('s32', 'h', 256)}",
    ),
    Probe(
        "squeeze",
        f"{load('s32', 'x', 'a')} {load('s32', 'y', 'b')} vector_bool all = asc_create_mask_b32(PAT_ALL);"
        "auto m = V::vcmp_gt(x, y, all); auto r = V::vsqz(x, m, MODE_STORED); auto c = V::vusqz<int32_t>(m);"
        f"{store('s32', 'r')} {store('s32', 'c', 256)}",
    ),
    Probe(
        "ramp",
        "auto up = V::vci<float>(3.0f, INC_ORDER); auto down = V::vci<int32_t>(5, DEC_ORDER);"
        f"{store('f32', 'up')} {store('s32', 'down', 256)}",
    ),
    Probe(
        "broadcast",
        f"{load('f32', 'x', 'a')} {tail_mask('f32')}"
        "auto r = V::vdup<float>(1.5f, m, MODE_ZEROING); auto q = V::vdupv(x, m, POS_LOWEST, MODE_ZEROING);"
        f"{store('f32', 'r')} {store('f32', 'q', 256)}",
    ),
    Probe(
        "select",
        f"{load('f32', 'x', 'a')} {load('f32', 'y', 'b')} {tail_mask('f32')}"
        f"auto r = V::vsel(x, y, m); {store('f32', 'r')}",
    ),
    Probe(
        "merging",
        f"{load('f32', 'x', 'a')} {load('f32', 'y', 'b')} {tail_mask('f32')}"
        "auto r = y; ::vadd(r, x, y, m, MODE_MERGING); auto q = y; ::vmuls(q, x, 2.0f, m, MODE_MERGING);"
        f"{store('f32', 'r')} {store('f32', 'q', 256)}",
    ),
    Probe(
        "fused",
        f"{load('f32', 'x', 'a')} {load('f32', 'y', 'b')} vector_bool all = asc_create_mask_b32(PAT_ALL);"
        "auto r = x; V::vmula(&r, x, y, all, MODE_ZEROING); auto q = x; V::vmadd(&q, x, y, all, MODE_ZEROING);"
        "auto s = x; V::vaxpy(&s, y, 3.0f, all, MODE_ZEROING); auto e = V::vexpdif(x, y, all);"
        f"{store('f32', 'r')} {store('f32', 'q', 256)} {store('f32', 's', 512)} {store('f32', 'e', 768)}",
    ),
    Probe(
        "exact_division",
        f"{load('f32', 'x', 'a')} {load('f32', 'y', 'b')} {tail_mask('f32')}"
        f"auto r = V::vdiv_0ulp_ftz_true(x, y, m, MODE_ZEROING); {store('f32', 'r')}",
    ),
    Probe(
        "shifts",
        f"{load('u32', 'x', 'a')} {load('s32', 's', 'a')} vector_bool all = asc_create_mask_b32(PAT_ALL);"
        "auto l = V::vshls(x, 3, all, MODE_ZEROING); auto r = V::vshrs(x, 3, all, MODE_ZEROING);"
        "auto t = V::vshrs(s, 3, all, MODE_ZEROING); auto z = V::vshrs(s, 40, all, MODE_ZEROING);"
        f"{store('u32', 'l')} {store('u32', 'r', 256)} {store('s32', 't', 512)} {store('s32', 'z', 768)}",
    ),
    Probe(
        "carry",
        f"{load('u32', 'x', 'a')} {load('u32', 'y', 'b')} vector_bool all = asc_create_mask_b32(PAT_ALL);"
        "auto s = V::vaddc(x, y, all); auto d = V::vsubc(x, y, all); auto p = V::vmull(x, y, all);"
        "V::psts_norm(s.v0, (__ubuf__ uint32_t*)out, 0); V::psts_norm(d.v0, (__ubuf__ uint32_t*)(out + 32), 0);"
        f"{store('u32', 's.v1', 256)} {store('u32', 'p.v0', 512)} {store('u32', 'p.v1', 768)}",
    ),
    Probe(
        "histogram",
        f"{load('u8', 'x', 'a')} {tail_mask('u8')} auto zero = V::vdup<uint16_t>(0,"
        "asc_create_mask_b16(PAT_ALL), MODE_ZEROING); auto c = zero; auto d = zero;"
        "V::dhistv2(&c, x, m, Bin_N0); V::chistv2(&d, x, m, Bin_N1);"
        f"{store('u16', 'c')} {store('u16', 'd', 256)}",
    ),
    *(
        Probe(
            f"mask_{pattern}_b{bits}",
            f"V::psts_norm(asc_create_mask_b{bits}(PAT_{pattern}), (__ubuf__ uint32_t*)out, 0);",
        )
        for bits in (8, 16, 32)
        for pattern in ("ALL", "ALLF", "VL1", "VL3", "VL32", "M3", "M4", "H", "Q")
    ),
    Probe(
        "mask_countdown",
        "for (int i = 0; i < 4; ++i) { V::psts_norm(asc_update_mask_b32(n), (__ubuf__ uint32_t*)(out + 64 * i), 0);"
        "*(__ubuf__ uint32_t*)(out + 64 * i + 32) = n; }",
    ),
    Probe(
        "predicates",
        "auto p = V::plds_norm((__ubuf__ uint32_t*)a, 0); auto q = V::plds_norm((__ubuf__ uint32_t*)b, 0);"
        "auto all = asc_create_mask_b8(PAT_ALL); auto i = V::pintlv_b16(p, q); auto d = V::pdintlv_b16(i.v0, i.v1);"
        "vector_bool r[] = {V::pand(p, q, all), V::por(p, q, all), V::pxor(p, q, all), V::pnot(p, all), V::psel(p, q, p),"
        "V::ppack(p, LOWER), V::punpack(p, HIGHER), i.v0, d.v0, d.v1};"
        "for (int k = 0; k < 10; ++k) V::psts_norm(r[k], (__ubuf__ uint32_t*)(out + 32 * k), 0);",
    ),
    Probe(
        "odd_jobs",
        f"{load('f32', 'x', 'a')} {load('f32', 'y', 'b')} vector_bool all = asc_create_mask_b32(PAT_ALL);"
        "auto d = V::vabsdif(x, y, all, MODE_ZEROING); auto l = V::vlrelu(x, 0.25f, all);"
        "auto p = V::vprelu(x, y, all); auto s = V::vcpadd(x, all, MODE_ZEROING);"
        f"{store('f32', 'd')} {store('f32', 'l', 256)} {store('f32', 'p', 512)} {store('f32', 's', 768)}",
    ),
    Probe(
        "register_gather",
        f"{load('u32', 'x', 'a')} {load('u32', 'i', 'b')} auto r = V::vselr(x, i); {store('u32', 'r')}",
    ),
    Probe(
        "subnormal_results",
        f"{load('f32', 'x', 'a')} {load('f32', 'y', 'b')} vector_bool all = asc_create_mask_b32(PAT_ALL);"
        "auto flushed = V::vexp(x, all, MODE_ZEROING); auto kept = V::vexp_1ulp_ftz_false(x, all, MODE_ZEROING);"
        "auto logarithm = V::vln_1ulp_ftz_false(y, all, MODE_ZEROING);"
        "auto root = V::vsqrt_0ulp_ftz_false(y, all, MODE_ZEROING);"
        f"{store('f32', 'flushed')} {store('f32', 'kept', 256)} {store('f32', 'logarithm', 512)}"
        f"{store('f32', 'root', 768)}",
    ),
    Probe(
        "carry_in",
        f"{load('u32', 'x', 'a')} {load('u32', 'y', 'b')} vector_bool all = asc_create_mask_b32(PAT_ALL);"
        "auto odd = V::vcmp_gt(x, y, all); auto s = V::vaddcs(x, y, odd, all); auto d = V::vsubcs(x, y, odd, all);"
        f"{store('u32', 's.v1')} {store('u32', 'd.v1', 256)}"
        "V::psts_norm(s.v0, (__ubuf__ uint32_t*)(out + 512), 0); V::psts_norm(d.v0, (__ubuf__ uint32_t*)(out + 544), 0);",
    ),
    Probe(
        "predicate_memory",
        "V::psts_norm(V::plds_upsample((__ubuf__ uint32_t*)a, 0), (__ubuf__ uint32_t*)out, 0);"
        "V::psts_norm(V::plds_downsample((__ubuf__ uint32_t*)a, 0), (__ubuf__ uint32_t*)(out + 32), 0);"
        "V::psts_pack(V::plds_norm((__ubuf__ uint32_t*)a, 0), (__ubuf__ uint32_t*)(out + 64), 0);",
    ),
    Probe(
        "nd2nz_scatter",
        "ascend_nd2nz_scatter_callee<16, 16, uint16_t, uint16_t>((__ubuf__ uint16_t*)a, (__ubuf__ uint16_t*)out);",
    ),
    Probe(
        "misaligned_load", f"auto x = V::vlds_norm<float>((__ubuf__ float*)(a + 4), 0); {store('f32', 'x')}"
    ),
    Probe(
        "load_beyond_ub",
        f"auto x = V::vlds_norm<float>((__ubuf__ float*)(a + 256 * 1024 - 128), 0); {store('f32', 'x')}",
    ),
    Probe(
        "store_tail_at_end_of_ub",
        f"{load('f32', 'x', 'a')} {tail_mask('f32')}"
        "V::vsts_norm<float>(x, (__ubuf__ float*)(a + 256 * 1024 - 32), 0, m);",
    ),
    Probe(
        "address_register",
        f"auto p = V::vld_x2<uint16_t>((__ubuf__ uint16_t*)a, asc_update_addr_reg_b16(0), DINTLV_B16);"
        f"{store('u16', 'p.v0')}",
    ),
]

SCALAR_KERNELS = """
extern "C" __global__ __vector__ void decode_all(__gm__ float* F16, __gm__ float* BF16, __gm__ float* E4M3, __gm__ float* E5M2) {
  asc_init();
  for (int i = 0; i < 65536; ++i) {
    F16[i] = std::bit_cast<half>(static_cast<uint16_t>(i));
    BF16[i] = std::bit_cast<bfloat16_t>(static_cast<uint16_t>(i));
  }
  for (int i = 0; i < 256; ++i) {
    E4M3[i] = std::bit_cast<float8_e4m3_t>(static_cast<uint8_t>(i));
    E5M2[i] = std::bit_cast<float8_e5m2_t>(static_cast<uint8_t>(i));
  }
}
extern "C" __global__ __vector__ void encode(__gm__ float* X, __gm__ half* F16, __gm__ bfloat16_t* BF16, __gm__ uint8_t* E4M3,
                                             __gm__ uint8_t* E5M2, int32_t n) {
  asc_init();
  for (int i = 0; i < n; ++i) {
    F16[i] = half(X[i]);
    BF16[i] = __float2bfloat16_rn(X[i]);
    E4M3[i] = __asc_cvt_float2_to_fp8x2(make_float2(X[i], 0.0f), __ASC_SATFINITE, __ASC_E4M3) & 0xff;
    E5M2[i] = __asc_cvt_float2_to_fp8x2(make_float2(0.0f, X[i]), __ASC_SATFINITE, __ASC_E5M2) >> 8;
  }
}
extern "C" __global__ __vector__ void half_arithmetic(__gm__ half* A, __gm__ half* B, __gm__ half* SUM, __gm__ half* PRODUCT,
                                                      __gm__ half* QUOTIENT, int32_t n) {
  asc_init();
  for (int i = 0; i < n; ++i) {
    SUM[i] = A[i] + B[i];
    PRODUCT[i] = A[i] * B[i];
    QUOTIENT[i] = A[i] / B[i];
  }
}
extern "C" __global__ __vector__ void vector_access_in_scalar_code(__gm__ float* X) {
  asc_init();
  __ubuf__ float* ub = (__ubuf__ float*)0;
  vector_f32 x;
  asc_loadalign(x, ub, 0);
  X[0] = x.lane[0];
}
"""

SOURCE = (
    "#include <tl_templates/ascend/common.h>\n#include <tl_templates/ascend/nd2nz_copy.h>\n#include <bit>\n"
    + "".join(probe.source() for probe in PROBES)
    + SCALAR_KERNELS
)


@pytest.fixture(scope="module")
def kernels() -> TwinKernels:
    return Twin(ensure_twin_home()).compile(SOURCE)


def run(
    kernels: TwinKernels, probe: str, a: np.ndarray, b: np.ndarray | None = None, n: int = 256
) -> np.ndarray:
    """Bytes of the out area; a and b may be shorter than 512 bytes."""
    areas = []
    for values in (a, a if b is None else b):
        area = np.zeros(512, np.uint8)
        raw = np.ascontiguousarray(values).view(np.uint8).ravel()[:512]
        area[: raw.size] = raw
        areas.append(area)
    out = np.zeros(1024, np.uint8)
    kernels.launch(f"probe_{probe}", *areas, out, n)
    return out


def lanes(kind: str) -> int:
    return REGISTER_BYTES // width(kind)


def operands(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    if TYPES[kind][2] is not None:
        values = random.standard_normal((2, lanes(kind))).astype(np.float32) * 4
        values[0, :6] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0]
        values[1, :6] = [-0.0, 0.0, 2.0, np.inf, 3.0, np.nan]
        a, b = (from_floats(row, kind) for row in values)
        return a, b
    info = np.iinfo(TYPES[kind][1])
    drawn = random.integers(info.min, info.max, (2, lanes(kind)), dtype=TYPES[kind][1], endpoint=True)
    drawn[:, 0] = info.max, info.min
    return drawn[0], drawn[1]


def register(out: np.ndarray, kind: str, index: int = 0) -> np.ndarray:
    return out[index * REGISTER_BYTES : (index + 1) * REGISTER_BYTES].view(TYPES[kind][1])


def active_bits(out: np.ndarray, index: int = 0) -> np.ndarray:
    """A stored predicate as 256 booleans."""
    return np.unpackbits(out[32 * index : 32 * (index + 1)], bitorder="little").astype(bool)


def assert_same(got: np.ndarray, expected: np.ndarray, kind: str) -> None:
    """Bit-equal, except that any NaN equals any NaN."""
    if TYPES[kind][2] is None:
        np.testing.assert_array_equal(got, expected)
        return
    raw = {1: np.uint8, 2: np.uint16, 4: np.uint32}[width(kind)]
    nan = np.isnan(to_floats(expected, kind))
    np.testing.assert_array_equal(np.isnan(to_floats(got, kind)), nan)
    np.testing.assert_array_equal(got.view(raw)[~nan], expected.view(raw)[~nan])


def masked(values: np.ndarray, n: int) -> np.ndarray:
    result = values.copy()
    result[n:] = 0
    return result


# ---- numbers ----


def test_every_small_float_decodes_to_its_value(kernels):
    got = [
        np.zeros(65536, np.float32),
        np.zeros(65536, np.float32),
        np.zeros(256, np.float32),
        np.zeros(256, np.float32),
    ]
    kernels.launch("decode_all", *got)
    for values, kind in zip(got, ("f16", "bf16", "e4m3", "e5m2"), strict=True):
        bits = np.arange(values.size, dtype=TYPES[kind][1])
        assert_same(values, to_floats(bits, kind), "f32")


def test_float_encodes_to_the_nearest_even_small_float(kernels):
    random = np.random.default_rng(7)
    cases = [random.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)]
    cases += [
        (random.standard_normal(20_000) * scale).astype(np.float32) for scale in (1e-7, 1e-3, 1.0, 300.0, 5e4)
    ]
    for kind in ("f16", "bf16", "e4m3", "e5m2"):
        every = to_floats(np.arange(1 << (8 * width(kind)), dtype=TYPES[kind][1]), kind)
        every = np.sort(every[np.isfinite(every)]).astype(np.float64)
        cases += [
            every.astype(np.float32),
            ((every[1:] + every[:-1]) / 2).astype(np.float32),
        ]  # values and ties
    x = np.concatenate(cases)
    f16, bf16 = np.zeros(x.size, np.uint16), np.zeros(x.size, np.uint16)
    e4m3, e5m2 = np.zeros(x.size, np.uint8), np.zeros(x.size, np.uint8)
    kernels.launch("encode", x, f16, bf16, e4m3, e5m2, x.size)
    assert_same(f16, from_floats(x, "f16"), "f16")
    assert_same(bf16, from_floats(x, "bf16"), "bf16")
    assert_same(e4m3, from_floats(np.clip(x, -448, 448), "e4m3"), "e4m3")
    assert_same(e5m2, from_floats(np.clip(x, -57344, 57344), "e5m2"), "e5m2")


def test_half_arithmetic_rounds_once(kernels):
    random = np.random.default_rng(3)
    a, b = random.integers(0, 65536, (2, 100_000), dtype=np.uint16).view(np.float16)
    got = [np.zeros(a.size, np.uint16) for _ in range(3)]
    kernels.launch("half_arithmetic", a, b, *got, a.size)
    with np.errstate(all="ignore"):
        for bits, expected in zip(got, (a + b, a * b, a / b), strict=True):
            assert_same(bits, expected.view(np.uint16), "f16")


# ---- element-wise ----


def expected_binary(op: str, kind: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        if TYPES[kind][2] is None:
            functions = {"vadd": np.add, "vsub": np.subtract, "vmul": np.multiply, "vmax": np.maximum}
            functions |= {
                "vmin": np.minimum,
                "vand": np.bitwise_and,
                "vor": np.bitwise_or,
                "vxor": np.bitwise_xor,
            }
            return functions[op](a, b)
        x, y = to_floats(a, kind), to_floats(b, kind)
        if op in ("vmax", "vmin"):
            equal = (x == y) & (x == 0)
            result = np.maximum(x, y) if op == "vmax" else np.minimum(x, y)
            sign = np.signbit(x) & np.signbit(y) if op == "vmax" else np.signbit(x) | np.signbit(y)
            result[equal] = np.where(sign[equal], -0.0, 0.0)
            return from_floats(result, kind)
        functions = {"vadd": np.add, "vsub": np.subtract, "vmul": np.multiply, "vdiv": np.divide}
        return from_floats(functions[op](x, y), kind)


@pytest.mark.parametrize(("op", "kind"), BINARY_CASES)
def test_binary_operation_matches_numpy_and_zeroes_inactive_lanes(kernels, op, kind):
    a, b = operands(kind, seed=len(op) + width(kind))
    for n in (lanes(kind), lanes(kind) - 5):
        got = register(run(kernels, f"{op}_{kind}", a, b, n), kind)
        assert_same(got, masked(expected_binary(op, kind, a, b), n), kind)


@pytest.mark.parametrize(("op", "kind"), UNARY_CASES)
def test_unary_operation_matches_numpy(kernels, op, kind):
    a, _ = operands(kind, seed=11)
    n = lanes(kind) - 3
    got = register(run(kernels, f"{op}_{kind}", a, None, n), kind)
    with np.errstate(all="ignore"):
        if TYPES[kind][2] is None:
            expected = {"vabs": np.abs, "vneg": np.negative, "vrelu": lambda x: np.maximum(x, 0)}[op](a)
            np.testing.assert_array_equal(got, masked(expected, n))
            return
        x = to_floats(a, kind)
        functions = {"vabs": np.abs, "vneg": np.negative, "vexp": np.exp, "vln": np.log, "vsqrt": np.sqrt}
        functions["vrelu"] = lambda v: np.where(np.isnan(v), v, np.maximum(v, 0.0) + 0.0)
        expected = masked(to_floats(from_floats(functions[op](x), kind), kind), n)
    tolerance = {"f32": 2e-7, "f16": 1e-3, "bf16": 8e-3}[kind] if op in ("vexp", "vln") else 0
    np.testing.assert_allclose(to_floats(got, kind), expected, rtol=tolerance, atol=0)


@pytest.mark.parametrize("kind", COMPARE_KINDS)
@pytest.mark.parametrize("op", COMPARES)
def test_comparison_sets_the_first_bit_of_each_active_element(kernels, op, kind):
    a, b = operands(kind, seed=5)
    b[::4] = a[::4]
    n = lanes(kind) - 7
    got = active_bits(run(kernels, f"vcmp_{op}_{kind}", a, b, n))
    x, y = (a, b) if TYPES[kind][2] is None else (to_floats(a, kind), to_floats(b, kind))
    functions = {"eq": np.equal, "ne": np.not_equal, "gt": np.greater, "ge": np.greater_equal}
    functions |= {"lt": np.less, "le": np.less_equal}
    expected = np.zeros(256, bool)
    expected[:: width(kind)] = masked(functions[op](x, y), n)
    np.testing.assert_array_equal(got, expected)


def test_fused_operations_round_once(kernels):
    a, b = (operands("f32", seed)[0] for seed in (1, 2))
    a, b = a + np.float32(0.1), b * np.float32(0.3)
    a[:6], b[:6] = 1.25, 0.5
    out = run(kernels, "fused", a, b)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    # Products of two floats are exact in double; the sum then rounds there once more, far below float's last place.
    np.testing.assert_allclose(
        register(out, "f32", 0), (wide_a + wide_a * wide_b).astype(np.float32), rtol=1.2e-7
    )
    np.testing.assert_allclose(
        register(out, "f32", 1), (wide_a * wide_a + wide_b).astype(np.float32), rtol=1.2e-7
    )
    np.testing.assert_allclose(register(out, "f32", 2), (wide_b * 3 + wide_a).astype(np.float32), rtol=1.2e-7)
    np.testing.assert_allclose(register(out, "f32", 3), np.exp(a - b), rtol=2e-7)


def test_templates_exact_division_is_correctly_rounded(kernels):
    a, b = (operands("f32", seed)[0] for seed in (21, 22))
    a[:6], b[:6] = 1.0, 3.0
    got = register(run(kernels, "exact_division", a, b, 64), "f32")
    np.testing.assert_array_equal(got, a / b)


def test_shifts_are_logical_or_arithmetic_by_type(kernels):
    a, _ = operands("u32", seed=9)
    out = run(kernels, "shifts", a)
    np.testing.assert_array_equal(register(out, "u32", 0), a << 3)
    np.testing.assert_array_equal(register(out, "u32", 1), a >> 3)
    np.testing.assert_array_equal(register(out, "s32", 2), a.view(np.int32) >> 3)
    np.testing.assert_array_equal(register(out, "s32", 3), np.where(a.view(np.int32) < 0, -1, 0))


def test_carries_and_wide_products(kernels):
    a, b = operands("u32", seed=10)
    out = run(kernels, "carry", a, b)
    wide_a, wide_b = a.astype(np.uint64), b.astype(np.uint64)
    np.testing.assert_array_equal(active_bits(out, 0)[::4], (wide_a + wide_b) >> np.uint64(32) != 0)
    np.testing.assert_array_equal(active_bits(out, 1)[::4], a >= b)
    np.testing.assert_array_equal(register(out, "u32", 1), a + b)
    np.testing.assert_array_equal(register(out, "u32", 2), (wide_a * wide_b).astype(np.uint32))
    np.testing.assert_array_equal(
        register(out, "u32", 3), (wide_a * wide_b >> np.uint64(32)).astype(np.uint32)
    )


def test_carry_inputs(kernels):
    a, b = operands("u32", seed=12)
    out = run(kernels, "carry_in", a, b)
    carry = (a > b).astype(np.uint64)
    wide_a, wide_b = a.astype(np.uint64), b.astype(np.uint64)
    np.testing.assert_array_equal(register(out, "u32", 0), (wide_a + wide_b + carry).astype(np.uint32))
    np.testing.assert_array_equal(register(out, "u32", 1), (wide_a - wide_b - carry).astype(np.uint32))
    np.testing.assert_array_equal(active_bits(out, 16)[::4], wide_a + wide_b + carry >= 2**32)
    np.testing.assert_array_equal(active_bits(out, 17)[::4], wide_a >= wide_b + carry)


def test_differences_rectifiers_and_pair_sums(kernels):
    a, b = (operands("f32", seed)[0] for seed in (41, 42))
    a[:6], b[:6] = [-1, 1, 0, 2, -2, 3], 0.5
    out = run(kernels, "odd_jobs", a, b)
    np.testing.assert_array_equal(register(out, "f32", 0), np.abs(a - b))
    np.testing.assert_array_equal(register(out, "f32", 1), np.where(a >= 0, a, a * np.float32(0.25)))
    np.testing.assert_array_equal(register(out, "f32", 2), np.where(a >= 0, a, a * b))
    pairs = np.concatenate([a[::2] + a[1::2], np.zeros(32, np.float32)])
    np.testing.assert_array_equal(register(out, "f32", 3), pairs)


def test_register_gather_wraps_its_index(kernels):
    a, index = operands("u32", seed=43)
    got = register(run(kernels, "register_gather", a, index), "u32")
    np.testing.assert_array_equal(got, a[index % 64])


def test_subnormal_results_are_flushed_unless_the_template_keeps_them(kernels):
    x = np.linspace(-103, -80, 64, dtype=np.float32)
    y = np.geomspace(1e-44, 1e4, 64).astype(np.float32)
    out = run(kernels, "subnormal_results", x, y)
    exact = np.exp(x.astype(np.float64))
    smallest_normal = np.finfo(np.float32).tiny
    flushed = np.where(exact < smallest_normal, 0, exact)
    np.testing.assert_allclose(register(out, "f32", 0), flushed, rtol=2e-7)
    np.testing.assert_allclose(register(out, "f32", 1), exact, rtol=1e-6, atol=3e-45)
    np.testing.assert_allclose(register(out, "f32", 2), np.log(y.astype(np.float64)), rtol=1e-6)
    np.testing.assert_array_equal(register(out, "f32", 3), np.sqrt(y))


def test_select_and_merging_keep_the_other_source(kernels):
    a, b = (operands("f32", seed)[0] for seed in (31, 32))
    a[:6], b[:6] = 1.0, 2.0
    n, lane = 23, np.arange(64)
    np.testing.assert_array_equal(register(run(kernels, "select", a, b, n), "f32"), np.where(lane < n, a, b))
    out = run(kernels, "merging", a, b, n)
    np.testing.assert_array_equal(register(out, "f32", 0), np.where(lane < n, a + b, b))
    np.testing.assert_array_equal(register(out, "f32", 1), np.where(lane < n, a * 2, b))


# ---- masks ----


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("pattern", ["ALL", "ALLF", "VL1", "VL3", "VL32", "M3", "M4", "H", "Q"])
def test_mask_pattern_selects_its_elements(kernels, pattern, bits):
    count = 256 // (bits // 8)
    index = np.arange(count)
    chosen = {
        "ALL": index >= 0,
        "ALLF": index < 0,
        "M3": index % 3 == 0,
        "M4": index % 4 == 0,
        "H": index < count // 2,
        "Q": index < count // 4,
    }
    selected = chosen[pattern] if pattern in chosen else index < int(pattern[2:])
    expected = np.zeros(256, bool)
    expected[:: bits // 8] = selected
    np.testing.assert_array_equal(active_bits(run(kernels, f"mask_{pattern}_b{bits}", np.zeros(1))), expected)


def test_update_mask_counts_down_by_one_register(kernels):
    out = run(kernels, "mask_countdown", np.zeros(1), n=150)
    for step, (active, left) in enumerate([(64, 86), (64, 22), (22, 0), (0, 0)]):
        area = out[64 * step : 64 * (step + 1)]
        np.testing.assert_array_equal(active_bits(area)[::4], np.arange(64) < active)
        assert area[32:36].view(np.uint32)[0] == left


def test_predicate_logic_packing_and_interleaving(kernels):
    random = np.random.default_rng(4)
    p, q = random.integers(0, 2, (2, 256)).astype(bool)
    out = run(kernels, "predicates", np.packbits(p, bitorder="little"), np.packbits(q, bitorder="little"))
    packed = np.concatenate([p[::2], np.zeros(128, bool)])
    unpacked = np.zeros(256, bool)
    unpacked[::2] = p[128:]
    woven = np.stack([p.reshape(128, 2), q.reshape(128, 2)], 1).reshape(512)
    for index, expected in enumerate(
        [p & q, p | q, p ^ q, ~p, np.where(p, p, q), packed, unpacked, woven[:256], p, q]
    ):
        np.testing.assert_array_equal(active_bits(out, index), expected, err_msg=f"result {index}")


# ---- conversions ----


def grid(kind: str) -> np.ndarray:
    """All finite values of a small float type, ascending, as float64; the two zeros once."""
    every = to_floats(np.arange(1 << (8 * width(kind)), dtype=TYPES[kind][1]), kind)
    return np.unique(every[np.isfinite(every)].astype(np.float64))


def rounded_to(values: np.ndarray, x: np.ndarray, rounding: str) -> np.ndarray:
    """x (within the range of the sorted values) moved to a neighbour among them."""
    above = np.clip(np.searchsorted(values, x, side="left"), 0, values.size - 1)
    high = values[above]
    low = np.where(high == x, high, values[np.maximum(above - 1, 0)])
    middle = (low + high) / 2
    if rounding == "ROUND_F":
        return low
    if rounding == "ROUND_C":
        return high
    if rounding == "ROUND_Z":
        return np.where(x >= 0, low, high)
    assert rounding == "ROUND_A"
    return np.where(np.abs(x) == np.abs(middle), np.where(x >= 0, high, low), np.where(x > middle, high, low))


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(("src", "dst", "part"), NARROWINGS)
def test_narrowing_rounds_and_places_its_part(kernels, src, dst, part, rounding):
    random = np.random.default_rng(8)
    values = grid(dst)
    exact = random.choice(values, 16)
    ties = values[:-1] + np.diff(values) / 2
    x = np.concatenate([exact, random.choice(ties, 16), random.uniform(-3, 3, 28), [1e-9, -1e-9, 0.3, -0.3]])
    x = x.astype(np.float32)
    x = np.where(np.abs(x.astype(np.float64)) > values[-1], np.float32(values[-1]), x)
    part_index = int(part[-1]) if part[-1].isdigit() else int(part == "PART_ODD")
    ratio, n = 4 // width(dst), 60
    got = register(run(kernels, f"narrow_{src}_{dst}_{rounding}_RS_DISABLE", x, None, n), dst)
    if rounding == "ROUND_R":
        expected = to_floats(from_floats(x, dst), dst)
    else:
        expected = rounded_to(values, x.astype(np.float64), rounding)
    np.testing.assert_array_equal(
        to_floats(got, dst)[part_index::ratio], masked(expected.astype(np.float32), n)
    )
    others = np.delete(got.reshape(-1, ratio), part_index, axis=1)
    assert not others.any()


@pytest.mark.parametrize(("src", "dst", "part"), NARROWINGS)
def test_narrowing_overflow_follows_the_saturation_mode(kernels, src, dst, part):
    largest = grid(dst)[-1]
    x = np.array([3e38, -3e38, np.inf, -np.inf, np.nan], np.float32)
    part_index = int(part[-1]) if part[-1].isdigit() else int(part == "PART_ODD")
    ratio = 4 // width(dst)

    def convert(mode: str) -> np.ndarray:
        out = run(kernels, f"narrow_{src}_{dst}_ROUND_Z_{mode}", x, None, 5)
        return to_floats(register(out, dst), dst)[part_index::ratio][:5]

    saturated = convert("RS_ENABLE")
    if dst != "bf16":  # 3e38 lies inside bfloat16's range
        np.testing.assert_array_equal(saturated, np.float32([largest, -largest, largest, -largest, 0]))
    else:
        np.testing.assert_array_equal(saturated[2:], np.float32([largest, -largest, 0]))
    infinite = np.nan if dst == "e4m3" else np.inf
    np.testing.assert_array_equal(convert("RS_DISABLE")[2:], np.float32([infinite, -infinite, np.nan]))


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dst", ["s32", "s16"])
def test_float_to_integer_rounds_and_saturates(kernels, dst, rounding):
    x = np.zeros(64, np.float32)
    x[:14] = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 1.4, 1.6, -1.4, -1.6, 7.0, 1e6 + 0.5, -8388607.5, 0.49999997]
    x[14:20] = [np.nan, np.inf, -np.inf, 3e9, -3e9, 70000.0]
    functions = {
        "ROUND_R": np.rint,
        "ROUND_F": np.floor,
        "ROUND_C": np.ceil,
        "ROUND_Z": np.trunc,
        "ROUND_A": lambda v: np.copysign(np.floor(np.abs(v.astype(np.float64)) + 0.5), v),
    }
    info = np.iinfo(TYPES[dst][1])
    whole = np.nan_to_num(functions[rounding](x).astype(np.float64), nan=0.0, posinf=1e30, neginf=-1e30)
    expected = np.clip(whole, info.min, info.max).astype(TYPES[dst][1])
    step = 4 // width(dst)
    got = register(run(kernels, f"to_{dst}_{rounding}_RS_ENABLE", x), dst)[::step]
    np.testing.assert_array_equal(got, expected)
    cut = register(run(kernels, f"to_{dst}_{rounding}_RS_DISABLE", x), dst)[::step]
    np.testing.assert_array_equal(cut[14:17], [0, info.max, info.min])
    np.testing.assert_array_equal(cut[17:20], whole[17:20].astype(np.int64).astype(TYPES[dst][1]))


@pytest.mark.parametrize(("src", "dst", "part"), WIDENINGS)
def test_widening_reads_its_part(kernels, src, dst, part):
    a, _ = operands(src, seed=13)
    part_index = int(part[-1]) if part[-1].isdigit() else int(part == "PART_ODD")
    ratio, n = width(dst) // width(src), lanes(src) - 9
    chosen = masked(a, n)[part_index::ratio]
    got = register(run(kernels, f"widen_{src}_{dst}", a, None, n), dst)
    if TYPES[src][2] is None:
        np.testing.assert_array_equal(got, chosen.astype(TYPES[dst][1]))
    else:
        assert_same(got, to_floats(chosen, src), dst)


def test_integer_conversions(kernels):
    a, _ = operands("s32", seed=14)
    a[1:6] = [300, -5, 255, 2**24 + 1, -(2**24) - 3]
    np.testing.assert_array_equal(register(run(kernels, "s32_to_f32", a), "f32"), a.astype(np.float32))
    bytes_ = register(run(kernels, "s32_to_u8", a), "u8").reshape(64, 4)
    np.testing.assert_array_equal(bytes_[:, 0], np.clip(a, 0, 255))
    assert not bytes_[:, 1:].any()


# ---- reductions ----


def pairwise_sum(values: np.ndarray) -> np.ndarray:
    """Rounding to the array's own type after every addition of adjacent lanes."""
    while values.shape[-1] > 1:
        values = values[..., ::2] + values[..., 1::2]
    return values[..., 0]


def plain(bits: np.ndarray, kind: str) -> np.ndarray:
    return bits.view(np.float16) if kind == "f16" else bits


@pytest.mark.parametrize(("op", "kind"), REDUCTIONS)
def test_reduction_over_active_lanes(kernels, op, kind):
    random = np.random.default_rng(17)
    bits = from_floats(random.standard_normal(lanes(kind)), kind) if TYPES[kind][2] else operands(kind, 18)[0]
    n = lanes(kind) - 3  # the last block keeps a few active lanes
    got = plain(register(run(kernels, f"{op}_{kind}", bits, None, n), kind), kind)
    values = plain(bits, kind)
    expected = np.zeros_like(values)
    if op == "vcadd":
        expected[0] = pairwise_sum(masked(values, n))
    elif op == "vcgadd":
        expected[:8] = pairwise_sum(masked(values, n).reshape(8, -1))
    elif op in ("vcmax", "vcmin"):
        index = np.argmax(values[:n]) if op == "vcmax" else np.argmin(values[:n])
        expected[0] = values[index]
        expected.view({2: np.uint16, 4: np.uint32}[width(kind)])[1] = index
    else:
        extremum = np.max if op == "vcgmax" else np.min
        blocks = values.reshape(8, -1)
        expected[:7] = extremum(blocks[:7], axis=1)
        expected[7] = extremum(blocks[7, :-3])
    np.testing.assert_array_equal(got, expected)


def test_sum_of_short_integers_widens(kernels):
    a, _ = operands("s16", seed=19)
    got = register(run(kernels, "vcadd_s16", a, None, 100), "s32")
    assert got[0] == a[:100].astype(np.int64).sum()
    assert not got[1:].any()


def test_nan_wins_a_maximum_with_its_index(kernels):
    a = np.arange(64, dtype=np.float32)
    a[[9, 40]] = np.nan
    got = register(run(kernels, "vcmax_f32", a), "f32")
    assert np.isnan(got[0])
    assert got.view(np.uint32)[1] == 9


def test_first_of_equal_maxima_gives_the_index(kernels):
    a = np.zeros(64, np.float32)
    a[[12, 30]] = 5
    assert register(run(kernels, "vcmax_f32", a), "u32")[1] == 12


def test_histograms_count_bytes(kernels):
    a = np.random.default_rng(20).integers(0, 256, 256, dtype=np.uint8)
    out = run(kernels, "histogram", a, None, 200)
    counts = np.bincount(a[:200], minlength=256)
    np.testing.assert_array_equal(register(out, "u16", 0), counts[:128])
    np.testing.assert_array_equal(register(out, "u16", 1), np.cumsum(counts)[128:])


# ---- loads, stores, rearrangement ----


@pytest.mark.parametrize("name", LOADS)
def test_load_distribution(kernels, name):
    kind, expected = LOADS[name]
    a = np.random.default_rng(21).integers(0, 256, 512, dtype=np.uint8).view(TYPES[kind][1])
    got = register(run(kernels, f"load_{name}", a), kind)
    np.testing.assert_array_equal(got.view(np.uint8), expected(a).view(np.uint8))


def test_postupdate_load_uses_the_old_address(kernels):
    a = np.arange(128, dtype=np.float32)
    out = run(kernels, "load_postupdate", a)
    np.testing.assert_array_equal(out[:512].view(np.float32), a)


def test_dual_load_splits_even_and_odd(kernels):
    a = np.arange(256, dtype=np.uint16)
    out = run(kernels, "load_x2", a)
    np.testing.assert_array_equal(register(out, "u16", 0), a[::2])
    np.testing.assert_array_equal(register(out, "u16", 1), a[1::2])


def test_stores_touch_their_bytes_only(kernels):
    a, _ = operands("u32", seed=23)
    untouched = 0xEE
    out = run(kernels, "store_pack", a, None, 50)
    np.testing.assert_array_equal(out[:100].view(np.uint16), a[:50].astype(np.uint16))
    assert (out[100:] == untouched).all()
    out = run(kernels, "store_pack_quarter", a, None, 50)
    np.testing.assert_array_equal(out[:50], a[:50].astype(np.uint8))
    assert (out[50:] == untouched).all()
    out = run(kernels, "store_first", a)
    assert out[6:8].view(np.uint16)[0] == a.view(np.uint16)[0]
    assert (np.delete(out, [6, 7]) == untouched).all()
    out = run(kernels, "store_masked", a, None, 7)
    np.testing.assert_array_equal(out[:28].view(np.uint32), a[:7])
    assert (out[28:] == untouched).all()


def test_fp8_quarters_pack_into_consecutive_bytes(kernels):
    x = np.linspace(-500, 500, 64, dtype=np.float32)
    out = run(kernels, "store_quarter_e4m3", x, None, 64)
    assert_same(out[:64], from_floats(np.clip(x, -448, 448), "e4m3"), "e4m3")
    assert (out[64:] == 0xEE).all()


def test_block_store_strides_and_advances(kernels):
    a = np.arange(128, dtype=np.uint16) + 1
    out = run(kernels, "store_blocks", a)
    blocks = out.reshape(32, 32)
    for block in range(8):
        expected = a[16 * block : 16 * (block + 1)]
        np.testing.assert_array_equal(blocks[3 * block].view(np.uint16), expected)
    assert blocks[2, :2].view(np.uint16)[0] == 1  # the advanced pointer: two blocks on
    assert (blocks[1] == 0xEE).all()


def test_gather_and_scatter(kernels):
    random = np.random.default_rng(24)
    a = random.standard_normal(128).astype(np.float32)
    index = random.permutation(128).astype(np.uint32)[:64]
    n = 40
    got = register(run(kernels, "gather", a, index, n), "f32")
    np.testing.assert_array_equal(got, masked(a[index], n))
    small = random.integers(-128, 128, 512, dtype=np.int8)
    where = random.integers(0, 512, 128, dtype=np.uint16)
    got16 = register(run(kernels, "gather_bytes", small, where, 128), "s16")
    np.testing.assert_array_equal(got16, small[where].view(np.uint8).astype(np.int16))
    offsets = random.permutation(16)[:8].astype(np.uint32) * 32
    rows = register(run(kernels, "gather_blocks", small, offsets), "u8").reshape(8, 32)
    np.testing.assert_array_equal(rows, small.view(np.uint8).reshape(16, 32)[offsets // 32])
    out = run(kernels, "scatter", a, index, n).view(np.float32)
    np.testing.assert_array_equal(out[index[:n]], a[:n])


def test_permutations(kernels):
    a, b = operands("u16", seed=25)
    out = run(kernels, "permute", a, b)
    woven = np.stack([a, b], 1).ravel()
    both = np.concatenate([a, b])
    np.testing.assert_array_equal(out[:512].view(np.uint16), woven)
    np.testing.assert_array_equal(register(out, "u16", 2), both[::2])
    np.testing.assert_array_equal(register(out, "u16", 3), both[1::2])


def test_packing_and_unpacking(kernels):
    a, _ = operands("u32", seed=26)
    out = run(kernels, "pack", a)
    low = a.astype(np.uint16)
    np.testing.assert_array_equal(register(out, "u16", 0), np.concatenate([low, np.zeros(64, np.uint16)]))
    np.testing.assert_array_equal(register(out, "u16", 1), np.concatenate([np.zeros(64, np.uint16), low]))
    s, _ = operands("s16", seed=27)
    out = run(kernels, "unpack", s)
    np.testing.assert_array_equal(out[:512].view(np.int32), s)


def test_squeeze_moves_active_lanes_down(kernels):
    a, b = operands("s32", seed=28)
    out = run(kernels, "squeeze", a, b)
    chosen = a > b
    expected = np.zeros(64, np.int32)
    expected[: chosen.sum()] = a[chosen]
    np.testing.assert_array_equal(register(out, "s32", 0), expected)
    np.testing.assert_array_equal(register(out, "s32", 1), np.cumsum(chosen) - chosen)


def test_ramps_and_broadcasts(kernels):
    out = run(kernels, "ramp", np.zeros(1))
    np.testing.assert_array_equal(register(out, "f32", 0), np.arange(64) + 3)
    np.testing.assert_array_equal(register(out, "s32", 1), 5 - np.arange(64))
    a = np.arange(64, dtype=np.float32) + 7
    out = run(kernels, "broadcast", a, None, 10)
    np.testing.assert_array_equal(register(out, "f32", 0), masked(np.full(64, 1.5, np.float32), 10))
    np.testing.assert_array_equal(register(out, "f32", 1), masked(np.full(64, 7, np.float32), 10))


def test_scatter_template_writes_rows_as_blocks(kernels):
    a = np.arange(256, dtype=np.uint16)
    out = run(kernels, "nd2nz_scatter", a)
    np.testing.assert_array_equal(out[:512].view(np.uint16), a)
    assert (out[512:] == 0xEE).all()


def test_predicate_loads_and_stores_change_the_density(kernels):
    bits = np.random.default_rng(29).integers(0, 2, 512).astype(bool)
    out = run(kernels, "predicate_memory", np.packbits(bits, bitorder="little"))
    np.testing.assert_array_equal(active_bits(out, 0), np.repeat(bits[:128], 2))
    np.testing.assert_array_equal(active_bits(out, 1), bits[::2])
    np.testing.assert_array_equal(active_bits(out, 2)[:128], bits[:256:2])
    assert (out[80:] == 0xEE).all()


# ---- what hardware would not forgive ----


def test_misaligned_load_is_refused(kernels):
    with pytest.raises(TwinFailure, match=r"asc_loadalign.*align"):
        run(kernels, "misaligned_load", np.zeros(1))


def test_load_beyond_ub_is_refused(kernels):
    with pytest.raises(TwinFailure, match="asc_loadalign"):
        run(kernels, "load_beyond_ub", np.zeros(1))


def test_masked_tail_may_end_at_the_end_of_ub(kernels):
    run(kernels, "store_tail_at_end_of_ub", np.zeros(1), n=8)
    with pytest.raises(TwinFailure, match="asc_storealign"):
        run(kernels, "store_tail_at_end_of_ub", np.zeros(1), n=9)


def test_vector_access_in_scalar_code_is_refused(kernels):
    with pytest.raises(TwinFailure, match="asc_loadalign"):
        kernels.launch("vector_access_in_scalar_code", np.zeros(8, np.float32))


def test_every_intrinsic_of_tilelangs_vector_templates_is_declared():
    folder = templates_dir() / "tl_templates" / "ascend"
    used: set[str] = set()
    for name in ("simd_inst.h", "reduce.h", "nd2nz_copy.h"):
        text = re.sub(
            r"//[^\n]*|/\*.*?\*/|#include[^\n]*",
            "",
            (folder / name).read_text(encoding="utf-8"),
            flags=re.DOTALL,
        )
        used |= set(re.findall(r"\basc_\w+", text))
    headers = Path(ensure_twin_home()) / "include"
    declared = "\n".join(path.read_text(encoding="utf-8") for path in headers.rglob("*.h"))
    generated = {  # names that macros put together
        f"asc_{op}_scalar" for op in ("eq", "ne", "gt", "ge", "lt", "le")
    } | {
        f"asc_{what}_b{bits}"
        for what in ("create_mask", "update_mask", "intlv", "deintlv")
        for bits in (8, 16, 32)
    }
    assert len(used) > 80
    missing = {
        name
        for name in used - generated - {"asc_intlv_", "asc_deintlv_", "asc_"}
        if not re.search(rf"\b{name}\b", declared)
    }
    assert not missing


def test_unmodelled_variant_is_named(kernels):
    with pytest.raises(TwinFailure, match="asc_update_addr_reg_b16 is not modelled"):
        run(kernels, "address_register", np.zeros(1))
