"""Get a GEMM kernel, launch it, check it. Needs a running daemon (kaas serve) and torch.

On a node without an NPU the daemon compiles for the CPU twin, and CPU tensors are what the kernel takes.
"""

import torch

from kaas import GemmSpec, get_kernel


def main() -> None:
    """One kernel, several sizes."""
    gemm = get_kernel(GemmSpec(n=512, k=1024, dtype_d="fp32"))
    device = "cpu" if gemm.passport.toolchain.kind == "twin" else "npu"
    print(f"{gemm!r}: {gemm.origin}, tiles {gemm.choices}")

    b = torch.randn(512, 1024, device=device).bfloat16()
    for m in (1, 100, 333):  # m is dynamic: one kernel for all
        a = torch.randn(m, 1024, device=device).bfloat16()
        d = gemm(a, b, torch.empty(m, 512, device=device))
        reference = a.float() @ b.float().T
        torch.testing.assert_close(d, reference, rtol=1e-3, atol=1e-3)
        print(f"m={m}: right")


if __name__ == "__main__":
    main()
