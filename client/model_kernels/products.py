"""Products with weights and the elementwise kernels around them, forward and backward."""

from __future__ import annotations

from typing import Any, NamedTuple

from kaas.client.model_kernels.deployment import Deployment, Tokens, Workload
from kaas.client.model_kernels.wish_list import Layers, WishList
from kaas.kernel_library.families.batched_gemm import BatchedGemmSpec
from kaas.kernel_library.families.block_scaled_gemm import BlockScaledGemmSpec
from kaas.kernel_library.families.cast import CastSpec
from kaas.kernel_library.families.gemm import GemmSpec
from kaas.kernel_library.families.rmsnorm import RmsNormSpec
from kaas.kernel_library.families.rmsnorm_backward import RmsNormBackwardSpec
from kaas.kernel_library.families.rope import RopeSpec
from kaas.kernel_library.families.swiglu import SwigluSpec
from kaas.kernel_library.families.swiglu_backward import SwigluBackwardSpec

SCALES: dict[str, Any] = {"scale_dtype": "e8m0x2", "round_sf": True, "col_major": True}
"""What block-scaled products read: a power of two for 32 values, pairs by block."""


class Step(NamedTuple):
    """One workload of a deployment, and where what it wants is written down.

    A decoding request has ``queries`` tokens.
    """

    wishes: WishList
    deployment: Deployment
    workload: Workload
    queries: int = 1

    @property
    def tokens(self) -> Tokens:
        """Rows that pass through a layer."""
        return self.workload.tokens

    @property
    def trains(self) -> bool:
        """Whether gradients are wanted."""
        return self.workload.phase == "training"

    @property
    def decodes(self) -> bool:
        """Whether each sequence has only its last tokens to compute."""
        return self.workload.phase == "decode"

    def cast(self, layers: Layers, what: str, width: int, by: str = "per_token") -> None:
        """Rows quantised for a block-scaled product."""
        # Scales of columns lie [blocks, columns] as they are.
        told = SCALES | {"granularity": by, "col_major": by == "per_token"}
        self.wishes.want(layers, what, CastSpec, hidden=width, tokens=self.tokens, **told)

    def product(
        self,
        layers: Layers,
        what: str,
        *,
        n: int,
        k: int,
        is_scaled: bool = True,
        is_cast: bool = False,
        is_gradient_cast: bool = False,
        dtype_d: str | None = None,
        tokens: Tokens | None = None,
    ) -> None:
        """``x[tokens, k] @ w[n, k]^T`` and, in training, both gradients.

        ``is_scaled`` says that it is block-scaled where the deployment's products are; ``is_cast`` that
        another step has quantised x already, ``is_gradient_cast`` likewise of the result's gradient.
        """
        m = self.tokens if tokens is None else tokens
        out = self.deployment.plain_dtype
        want = self.wishes.want
        if self.deployment.is_scaled and is_scaled:
            if not is_cast:
                self.cast(layers, f"cast for {what}", k)
            want(layers, what, BlockScaledGemmSpec, m=m, n=n, k=k, dtype_d=dtype_d or out)
            if self.trains:
                self._scaled_gradients(layers, what, n, k, is_gradient_cast)
            return
        plain = {"dtype_a": out, "dtype_b": out}
        want(layers, what, GemmSpec, m=m, n=n, k=k, dtype_d=dtype_d or out, **plain)
        if self.trains:
            place = f"{what}, gradient of the input"
            want(layers, place, GemmSpec, m=m, n=k, k=n, layout="nn", dtype_d=out, **plain)
            place = f"{what}, gradient of the weight"
            gradient = {"layout": "tn", "dtype_d": "fp32", "accumulate": True}
            want(layers, place, GemmSpec, m=n, n=k, k=m, **gradient, **plain)

    def _scaled_gradients(self, layers: Layers, what: str, n: int, k: int, is_cast: bool) -> None:
        m = self.tokens
        place = f"{what}, gradient of the input"
        if not is_cast:
            self.cast(layers, f"cast for {place}", n)
        self.wishes.want(layers, place, BlockScaledGemmSpec, m=m, n=k, k=n, layout="nn")
        # The sum runs over tokens, so scales do, too.
        place = f"{what}, gradient of the weight"
        self.cast(layers, f"cast of the input for {place}", k, "per_channel")
        self.cast(layers, f"cast of the gradient for {place}", n, "per_channel")
        gradient = {"layout": "tn", "dtype_d": "fp32", "accumulate": True}
        self.wishes.want(layers, place, BlockScaledGemmSpec, m=n, n=k, k=m, **gradient)

    def head_products(self, layers: Layers, what: str, expression: str, *, h: int, d: int, r: int) -> None:
        """One product per head, ``bhd,hdr->bhr`` or ``bhr,hdr->bhd``; with its gradients in training."""
        dtype = self.deployment.plain_dtype
        turned = "bhd,hdr->bhr" if expression == "bhr,hdr->bhd" else "bhr,hdr->bhd"
        rows = {"b": self.tokens, "h": h, "d": d, "r": r, "dtype_a": dtype}
        want = self.wishes.want
        want(layers, what, BatchedGemmSpec, expression=expression, dtype_d=dtype, **rows)
        if self.trains:
            place = f"{what}, gradient of the input"
            want(layers, place, BatchedGemmSpec, expression=turned, dtype_d=dtype, **rows)
            place = f"{what}, gradient of the weight"
            gradient = {"expression": "bhd,bhr->hdr", "dtype_d": "fp32", "accumulate": True}
            want(layers, place, BatchedGemmSpec, **gradient, **rows)

    def norm(
        self,
        layers: Layers,
        what: str,
        *,
        width: int,
        eps: float,
        residual: bool = False,
        weight: bool = True,
        each: int = 1,
    ) -> None:
        """A root-mean-square norm of ``each`` rows per token, and its gradients."""
        fields = {
            "hidden": width,
            "weight": weight,
            "dtype": self.deployment.plain_dtype,
            "tokens": self.workload.rows(each),
        }
        want = self.wishes.want
        want(layers, what, RmsNormSpec, eps=eps, residual=residual, rstd=self.trains, **fields)
        if self.trains:
            want(layers, f"{what}, gradients", RmsNormBackwardSpec, residual_grad=residual, **fields)

    def rope(self, layers: Layers, what: str, *, inverse: bool = False, **fields: Any) -> None:
        """Positions rotated into heads; the gradient is rotated back."""
        fields |= {"dtype": self.deployment.plain_dtype, "tokens": self.tokens}
        self.wishes.want(layers, what, RopeSpec, inverse=inverse, **fields)
        if self.trains:
            self.wishes.want(layers, f"{what}, gradient", RopeSpec, inverse=not inverse, **fields)

    def gated_mlp(
        self, layers: Layers, what: str, *, hidden: int, intermediate: int, clamp: float | None = None
    ) -> None:
        """Gate and up in one product, their activation, and the product back."""
        scaled = self.deployment.is_scaled
        told: dict[str, Any] = {"cast": "e4m3", **SCALES} if scaled else {}
        told |= {"hidden": intermediate, "clamp": clamp, "tokens": self.tokens}
        self.product(layers, f"{what}.gate_up_proj", n=2 * intermediate, k=hidden, is_gradient_cast=scaled)
        self.activation(layers, f"{what}.activation", told)
        self.product(layers, f"{what}.down_proj", n=hidden, k=intermediate, is_cast=True)

    def activation(self, layers: Layers, what: str, told: dict[str, Any]) -> None:
        """silu(gate) * up, and its gradients; ``told`` are fields of both."""
        if self.deployment.plain_dtype != "bf16":
            self.wishes.lacks(layers, what, "silu(gate) * up of fp16", "swiglu has bf16 and fp32")
            return
        self.wishes.want(layers, what, SwigluSpec, **told)
        if self.trains:
            # A quantised result is computed again: the weight's gradient needs it by columns.
            recompute = "cast" in told
            place = f"{what}, gradients"
            self.wishes.want(layers, place, SwigluBackwardSpec, recompute=recompute, **told)
