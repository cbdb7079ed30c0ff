"""Convolutions with one weight per user, as one GPU kernel for all users.

``vmap`` turns m users' convolutions into one with m groups, and cuDNN runs that as one kernel per
group. Here they are implicit matrix products in Triton, the user being a coordinate of the grid.
Layout throughout: inputs [N, U·CI, H, W], weights [U·CO, CI, KH, KW], U users of N examples each.
:data:`DECOMPOSITIONS` is what a traced graph takes instead of PyTorch's.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (Triton's kernels are a language of their own.)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op

Ints = list[int]


@triton.jit
def _forward(x, w, y, N, U, xn, xu, xc, xh, xw,
             CI: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr,
             KH: tl.constexpr, KW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
             SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
             DH: tl.constexpr, DW: tl.constexpr,
             BC: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr,
             PRECISION: tl.constexpr):  # fmt: skip
    """y[n, u, co, r] = Σ_k w[u, co, k] x[n, u, k shifted by r], k = (ci, kh, kw)."""
    K: tl.constexpr = CI * KH * KW
    u, tile = (tl.program_id(0) % U).to(tl.int64), tl.program_id(0) // U
    p = tile * BP + tl.arange(0, BP)
    co = tl.program_id(1) * BC + tl.arange(0, BC)
    n, r = p // (OH * OW), p % (OH * OW)
    top, left = (r // OW) * SH - PH, (r % OW) * SW - PW
    base = x + u * xu + n.to(tl.int64) * xn + top * xh + left * xw
    inside = n < N
    acc = tl.zeros((BC, BP), dtype=tl.float32)
    for k0 in tl.static_range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        ci, kk = k // (KH * KW), k % (KH * KW)
        kh, kw = kk // KW * DH, kk % KW * DW
        ok = (k < K)[:, None] & inside[None, :]
        if PH > 0 or PW > 0:
            ih, iw = top[None, :] + kh[:, None], left[None, :] + kw[:, None]
            ok = ok & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        b = tl.load(base[None, :] + (ci * xc + kh * xh + kw * xw)[:, None], mask=ok, other=0.0)
        a = tl.load(
            w + u * (CO * K) + co[:, None] * K + k[None, :],
            mask=(co < CO)[:, None] & (k < K)[None, :],
            other=0.0,
        )
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    out = y + (n * U + u) * (CO * OH * OW) + r
    ok = inside[None, :] & (co < CO)[:, None]
    tl.store(out[None, :] + (co * (OH * OW))[:, None], acc, mask=ok)


@triton.jit
def _columns(g, w, columns, N, U, each, gn, gu, gc, gh, gw,
             K: tl.constexpr, CO: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
             BK: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
             PRECISION: tl.constexpr):  # fmt: skip
    """columns[n, u, k, r] = Σ_co w[u, co, k] g[n, u, co, r]; ``each`` images per program."""
    TILES: tl.constexpr = (OH * OW + BP - 1) // BP
    u, rest = (tl.program_id(0) % U).to(tl.int64), tl.program_id(0) // U
    r = rest % TILES * BP + tl.arange(0, BP)
    first = rest // TILES * each
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    inside = r < OH * OW
    source = g + u * gu + first.to(tl.int64) * gn + (r // OW) * gh + (r % OW) * gw
    target = columns + (first * U + u) * (K * OH * OW) + r
    for _ in range(first, tl.minimum(first + each, N)):
        acc = tl.zeros((BK, BP), dtype=tl.float32)
        for c0 in tl.static_range(0, CO, BC):
            co = c0 + tl.arange(0, BC)
            ok = inside[None, :] & (co < CO)[:, None]
            b = tl.load(source[None, :] + (co * gc)[:, None], mask=ok, other=0.0)
            a = tl.load(
                w + u * (CO * K) + co[None, :] * K + k[:, None],
                mask=(co < CO)[None, :] & (k < K)[:, None],
                other=0.0,
            )
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
        ok = inside[None, :] & (k < K)[:, None]
        tl.store(target[None, :] + (k * (OH * OW))[:, None], acc, mask=ok)
        source += gn
        target += U.to(tl.int64) * (K * OH * OW)


@triton.jit
def _gather_columns(columns, dx, total,
                    H: tl.constexpr, W: tl.constexpr,
                    KH: tl.constexpr, KW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
                    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
                    DH: tl.constexpr, DW: tl.constexpr, BP: tl.constexpr):  # fmt: skip
    """dx[n, u, ci, h, w] = Σ_{kh, kw} of the columns that the pixel took part in."""
    p = tl.program_id(0).to(tl.int64) * BP + tl.arange(0, BP)
    plane, r = p // (H * W), (p % (H * W)).to(tl.int32)
    h, c = r // W + PH, r % W + PW
    base = columns + plane * (KH * KW * OH * OW)
    acc = tl.zeros((BP,), dtype=tl.float32)
    for kk in tl.static_range(KH * KW):
        oh, ow = h - kk // KW * DH, c - kk % KW * DW
        ok = (p < total) & (oh >= 0) & (ow >= 0)
        if SH > 1 or SW > 1:
            ok = ok & (oh % SH == 0) & (ow % SW == 0)
            oh, ow = oh // SH, ow // SW
        ok = ok & (oh < OH) & (ow < OW)
        acc += tl.load(base + (kk * OH * OW + oh * OW + ow), mask=ok, other=0.0)
    tl.store(dx + p, acc, mask=p < total)


@triton.jit
def _input_gradient(g, w, dx, N, U, gn, gu, gc, gh, gw,
                    CI: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr,
                    KH: tl.constexpr, KW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
                    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
                    DH: tl.constexpr, DW: tl.constexpr,
                    BC: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr,
                    PRECISION: tl.constexpr):  # fmt: skip
    """dx[n, u, ci, r] = Σ_{kh, kw, co} w[u, co, ci, kh, kw] g[n, u, co, r shifted]."""
    u, tile = (tl.program_id(0) % U).to(tl.int64), tl.program_id(0) // U
    p = tile * BP + tl.arange(0, BP)
    ci = tl.program_id(1) * BC + tl.arange(0, BC)
    n, r = p // (H * W), p % (H * W)
    h, c = r // W + PH, r % W + PW
    base = g + n.to(tl.int64) * gn + u * gu
    inside = n < N
    acc = tl.zeros((BC, BP), dtype=tl.float32)
    for kk in range(KH * KW):
        oh, ow = h - kk // KW * DH, c - kk % KW * DW
        ok = inside & (oh >= 0) & (ow >= 0)
        if SH > 1 or SW > 1:
            ok = ok & (oh % SH == 0) & (ow % SW == 0)
            oh, ow = oh // SH, ow // SW
        ok = ok & (oh < OH) & (ow < OW)
        here = base + oh * gh + ow * gw
        for c0 in tl.static_range(0, CO, BK):
            co = c0 + tl.arange(0, BK)
            both = ok[None, :] & (co < CO)[:, None]
            b = tl.load(here[None, :] + (co * gc)[:, None], mask=both, other=0.0)
            a = tl.load(
                w + u * (CO * CI * KH * KW) + (co[None, :] * CI + ci[:, None]) * (KH * KW) + kk,
                mask=(ci < CI)[:, None] & (co < CO)[None, :],
                other=0.0,
            )
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
    out = dx + (n * U + u) * (CI * H * W) + r
    ok = inside[None, :] & (ci < CI)[:, None]
    tl.store(out[None, :] + (ci * (H * W))[:, None], acc, mask=ok)


@triton.jit
def _weight_gradient(g, x, dw, N, U, each, gn, gu, gc, gh, gw, xn, xu, xc, xh, xw,
                     CI: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr,
                     KH: tl.constexpr, KW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
                     SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
                     DH: tl.constexpr, DW: tl.constexpr,
                     BC: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr,
                     PRECISION: tl.constexpr):  # fmt: skip
    """dw[part, u, co, k] = Σ over the part's images and all r of g[n, u, co, r] x[n, u, k, r].

    Parts are summed afterwards, in a fixed order: atomic additions would not repeat.
    """
    K: tl.constexpr = CI * KH * KW
    u, part = (tl.program_id(0) % U).to(tl.int64), tl.program_id(0) // U
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    co = tl.program_id(2) * BC + tl.arange(0, BC)
    ci, kk = k // (KH * KW), k % (KH * KW)
    down, right = kk // KW * DH - PH, kk % KW * DW - PW
    shift = ci * xc + down * xh + right * xw
    first = part * each
    last = tl.minimum(first + each, N)
    acc = tl.zeros((BC, BK), dtype=tl.float32)
    for r0 in range(0, OH * OW, BP):
        r = r0 + tl.arange(0, BP)
        oh, ow = r // OW, r % OW
        here = r < OH * OW
        gs = g + u * gu + first.to(tl.int64) * gn + (oh * gh + ow * gw)[None, :]
        gs = gs + (co * gc)[:, None]
        ok_g = (co < CO)[:, None] & here[None, :]
        xs = x + u * xu + first.to(tl.int64) * xn + (oh * (SH * xh) + ow * (SW * xw))[None, :]
        xs = xs + shift[:, None]
        ok_x = (k < K)[:, None] & here[None, :]
        if PH > 0 or PW > 0:
            ih = (oh * SH)[None, :] + down[:, None]
            iw = (ow * SW)[None, :] + right[:, None]
            ok_x = ok_x & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        for _ in range(first, last):
            a = tl.load(gs, mask=ok_g, other=0.0)
            b = tl.load(xs, mask=ok_x, other=0.0)
            acc = tl.dot(a, tl.trans(b), acc, input_precision=PRECISION)
            gs += gn
            xs += xn
    out = dw + ((part * U + u) * CO + co)[:, None] * K + k[None, :]
    tl.store(out, acc, mask=(co < CO)[:, None] & (k < K)[None, :])


class _Sizes:
    """The sizes of one grouped convolution, by the letters that the kernels use."""

    def __init__(
        self, x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
    ) -> None:
        self.N, _, self.H, self.W = x.shape
        _, self.CI, self.KH, self.KW = w.shape
        self.U, self.CO, self.K = groups, w.shape[0] // groups, self.CI * self.KH * self.KW
        self.OH, self.OW = (
            (size + 2 * padding[i] - dilation[i] * (w.shape[2 + i] - 1) - 1) // stride[i] + 1
            for i, size in enumerate((self.H, self.W))
        )
        self.moves = (*stride, *padding, *dilation)
        self.constants = (
            *(self.CI, self.H, self.W, self.CO, self.KH, self.KW, self.OH, self.OW),
            *self.moves,
        )


def _strides(t: Tensor, groups: int) -> tuple[int, ...]:
    """Of [N, U, C, H, W], given [N, U·C, H, W]."""
    n, c, h, w = t.stride()
    return n, c * (t.shape[1] // groups), c, h, w


def _block(size: int, most: int = 128) -> int:
    """A power of two for ``tl.dot``, which takes 16 at least."""
    return max(16, min(most, int(triton.next_power_of_2(size))))


def _precision() -> str:
    """TF32 where PyTorch may use it for convolutions; else three TF32 products, near float32."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"


# Block sizes below were the fastest of a small search on an H200, for LeNet-5's layers.


@custom_op("ucfl::grouped_convolution", mutates_args=())
def grouped_convolution(
    x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    """Every user's examples with its own filters."""
    s = _Sizes(x, w, stride, padding, dilation, groups)
    y = x.new_empty(s.N, s.U * s.CO, s.OH, s.OW)
    bc, bp, bk = _block(s.CO), 64, 32
    grid = (s.U * triton.cdiv(s.N * s.OH * s.OW, bp), triton.cdiv(s.CO, bc))
    _forward[grid](
        x, w.contiguous(), y, s.N, s.U, *_strides(x, s.U), *s.constants,
        bc, bp, bk, _precision(), num_warps=2,
    )  # fmt: skip
    return y


@grouped_convolution.register_fake
def _(x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> Tensor:
    s = _Sizes(x, w, stride, padding, dilation, groups)
    return x.new_empty(s.N, s.U * s.CO, s.OH, s.OW)


@custom_op("ucfl::grouped_convolution_input_gradient", mutates_args=())
def grouped_convolution_input_gradient(
    g: Tensor, x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    """The gradient with respect to the inputs.

    With few filters the sum over them is too short to be worth a pass over the pixels for every
    tap, so all columns are made first and gathered then.
    """
    s = _Sizes(x, w, stride, padding, dilation, groups)
    w = w.contiguous()
    dx = g.new_empty(s.N, s.U * s.CI, s.H, s.W)
    if s.CO <= 16:
        columns = g.new_empty(s.N, s.U, s.K, s.OH * s.OW, dtype=torch.float32)
        bp, bk, each = 64, 64, 4
        tiles = triton.cdiv(s.OH * s.OW, bp) * triton.cdiv(s.N, each)
        _columns[s.U * tiles, triton.cdiv(s.K, bk)](
            g, w, columns, s.N, s.U, each, *_strides(g, s.U), s.K, s.CO, s.OH, s.OW,
            bk, bp, 16, _precision(), num_warps=2,
        )  # fmt: skip
        _gather_columns[(triton.cdiv(dx.numel(), 1024),)](
            columns, dx, dx.numel(), s.H, s.W, s.KH, s.KW, s.OH, s.OW, *s.moves, 1024, num_warps=8
        )
        return dx
    bc, bp, bk = _block(s.CI), 64, _block(s.CO, 32)
    grid = (s.U * triton.cdiv(s.N * s.H * s.W, bp), triton.cdiv(s.CI, bc))
    _input_gradient[grid](
        g, w, dx, s.N, s.U, *_strides(g, s.U), *s.constants,
        bc, bp, bk, _precision(), num_warps=4,
    )  # fmt: skip
    return dx


@grouped_convolution_input_gradient.register_fake
def _(
    g: Tensor, x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    return g.new_empty(x.shape)


@custom_op("ucfl::grouped_convolution_weight_gradient", mutates_args=())
def grouped_convolution_weight_gradient(
    g: Tensor, x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    """The gradient with respect to every user's filters."""
    s = _Sizes(x, w, stride, padding, dilation, groups)
    bc, bk, bp, each = _block(s.CO), _block(s.K, 32), 32, 8
    parts = triton.cdiv(s.N, each)
    dw = g.new_empty(parts, *w.shape, dtype=torch.float32)
    grid = (s.U * parts, triton.cdiv(s.K, bk), triton.cdiv(s.CO, bc))
    _weight_gradient[grid](
        g, x, dw, s.N, s.U, each, *_strides(g, s.U), *_strides(x, s.U), *s.constants,
        bc, bk, bp, _precision(), num_warps=4,
    )  # fmt: skip
    return dw.sum(0).to(g.dtype)


@grouped_convolution_weight_gradient.register_fake
def _(
    g: Tensor, x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    return g.new_empty(w.shape)


def _suits(x: Tensor, transposed: bool, groups: int) -> bool:
    known = x.dtype in (torch.float32, torch.bfloat16)
    return groups > 1 and not transposed and x.dim() == 4 and known


def _convolution(
    x: Tensor, w: Tensor, bias: Tensor | None,
    stride: Ints, padding: Ints, dilation: Ints,
    transposed: bool, output_padding: Ints, groups: int,
) -> Any:  # fmt: skip
    if not _suits(x, transposed, groups):
        return NotImplemented
    y = torch.ops.ucfl.grouped_convolution(x, w, stride, padding, dilation, groups)
    return y if bias is None else y + bias[:, None, None]


def _convolution_backward(
    g: Tensor, x: Tensor, w: Tensor, bias_sizes: Ints | None,
    stride: Ints, padding: Ints, dilation: Ints,
    transposed: bool, output_padding: Ints, groups: int, mask: list[bool],
) -> Any:  # fmt: skip
    if not _suits(x, transposed, groups):
        return NotImplemented
    rest = g, x, w, stride, padding, dilation, groups
    return (
        torch.ops.ucfl.grouped_convolution_input_gradient(*rest) if mask[0] else None,
        torch.ops.ucfl.grouped_convolution_weight_gradient(*rest) if mask[1] else None,
        g.sum((0, 2, 3)) if mask[2] else None,
    )


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.convolution.default: _convolution,
    torch.ops.aten.convolution_backward.default: _convolution_backward,
}
