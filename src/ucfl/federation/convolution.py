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
def _forward(x, w, y, N, U, xn, xu, xc, xh, xw, yn, yu, yc, yh, yw,
             CI: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr,
             KH: tl.constexpr, KW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
             SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
             DH: tl.constexpr, DW: tl.constexpr,
             BC: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr,
             PRECISION: tl.constexpr):  # fmt: skip
    """y[n, u, co, r] = Σ_k w[u, co, k] x[n, u, k shifted by r], k = (ci, kh, kw): few channels."""
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
    out = y + u * yu + n.to(tl.int64) * yn + (r // OW) * yh + (r % OW) * yw
    ok = inside[None, :] & (co < CO)[:, None]
    tl.store(out[None, :] + (co * yc)[:, None], acc, mask=ok)


@triton.jit
def _wide(x, w, y, N, U, xn, xu, xc, xh, xw, yn, yu, yc, yh, yw,
          CI: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr,
          KH: tl.constexpr, KW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
          SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
          DH: tl.constexpr, DW: tl.constexpr,
          BC: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr,
          PRECISION: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """y[n, u, co, r] = Σ_tap Σ_ci w[u, tap, co, ci] x[n, u, ci, r shifted]: many channels.

    Tap by tap, places and masks are computed once for all channels, which lie side by side.
    """
    BLOCKS: tl.constexpr = (CI + BK - 1) // BK
    u, tile = (tl.program_id(0) % U).to(tl.int64), tl.program_id(0) // U
    p = tile * BP + tl.arange(0, BP)
    co = tl.program_id(1) * BC + tl.arange(0, BC)
    n, r = p // (OH * OW), p % (OH * OW)
    top, left = (r // OW) * SH - PH, (r % OW) * SW - PW
    base = x + u * xu + n.to(tl.int64) * xn
    inside = n < N
    acc = tl.zeros((BP, BC), dtype=tl.float32)
    for step in tl.range(0, KH * KW * BLOCKS, num_stages=STAGES):
        kk = step // BLOCKS
        ci = step % BLOCKS * BK + tl.arange(0, BK)
        ih, iw = top + kk // KW * DH, left + kk % KW * DW
        ok = inside & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        xs = (base + ih * xh + iw * xw)[:, None] + (ci * xc)[None, :]
        ws = w + ((u * (KH * KW) + kk) * CO + co[None, :]) * CI + ci[:, None]
        if CI % BK == 0:
            a = tl.load(xs, mask=ok[:, None], other=0.0)
            b = tl.load(ws, mask=(co < CO)[None, :], other=0.0)
        else:
            a = tl.load(xs, mask=ok[:, None] & (ci < CI)[None, :], other=0.0)
            b = tl.load(ws, mask=(co < CO)[None, :] & (ci < CI)[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    out = y + u * yu + n.to(tl.int64) * yn + (r // OW) * yh + (r % OW) * yw
    ok = inside[:, None] & (co < CO)[None, :]
    tl.store(out[:, None] + (co * yc)[None, :], acc, mask=ok)


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
def _gather_columns(columns, dx, total, U, xn, xu, xc, xh, xw, CI: tl.constexpr,
                    H: tl.constexpr, W: tl.constexpr,
                    KH: tl.constexpr, KW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
                    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
                    DH: tl.constexpr, DW: tl.constexpr, BP: tl.constexpr):  # fmt: skip
    """dx[n, u, ci, h, w] = Σ_{kh, kw} of the columns that the pixel took part in."""
    p = tl.program_id(0).to(tl.int64) * BP + tl.arange(0, BP)
    plane, r = p // (H * W), (p % (H * W)).to(tl.int32)
    h, c = r // W + PH, r % W + PW
    group = plane // CI
    at = dx + group // U * xn + group % U * xu + plane % CI * xc + (r // W) * xh + (r % W) * xw
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
    tl.store(at, acc, mask=p < total)


@triton.jit
def _weight_gradient(g, x, dw, N, U, each, gn, gu, gc, gh, gw, xn, xu, xc, xh, xw,
                     CI: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr,
                     KH: tl.constexpr, KW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
                     SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
                     DH: tl.constexpr, DW: tl.constexpr,
                     BC: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr,
                     TAPS_FIRST: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """dw[part, u, co, k] = Σ over the part's images and all r of g[n, u, co, r] x[n, u, k, r].

    Parts are summed afterwards, in a fixed order: atomic additions would not repeat. With
    ``TAPS_FIRST``, neighbouring columns of a tile are neighbouring channels of x, as they lie.
    """
    K: tl.constexpr = CI * KH * KW
    u, part = (tl.program_id(0) % U).to(tl.int64), tl.program_id(0) // U
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    co = tl.program_id(2) * BC + tl.arange(0, BC)
    if TAPS_FIRST:
        kk, ci = k // CI, k % CI
    else:
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
    out = dw + ((part * U + u) * CO + co)[:, None] * K + (ci * (KH * KW) + kk)[None, :]
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


#: Channels a user from which on they lie side by side in memory (PyTorch's channels_last, all
#: users' channels together), and a tap's product is long enough to be worth a step of its own.
MANY = 32


def _empty(like: Tensor, n: int, groups: int, channels: int, height: int, width: int) -> Tensor:
    """[N, U·C, H, W]; see :data:`MANY`."""
    layout = torch.channels_last if channels >= MANY else torch.contiguous_format
    return torch.empty(
        (n, groups * channels, height, width),
        dtype=like.dtype,
        device=like.device,
        memory_format=layout,
    )


def _by_taps(x: Tensor, taps: Tensor, y: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Fill y with :func:`_wide`; ``taps`` is [U, KH·KW, CO, CI]."""
    groups, _, outputs, inputs = taps.shape
    x = x.contiguous(memory_format=torch.channels_last)
    bc, bp, bk = _block(outputs), 128, _block(inputs, 32)
    grid = (groups * triton.cdiv(y[:, 0].numel(), bp), triton.cdiv(outputs, bc))
    _wide[grid](
        x, taps, y, len(x), groups, *_strides(x, groups), *_strides(y, groups), *sizes,
        bc, bp, bk, _precision(), 3, num_warps=8 if bc >= 64 else 4,
    )  # fmt: skip
    return y


# Block sizes were the fastest of small searches on an H200, for LeNet-5's and VGG's layers.


@custom_op("ucfl::grouped_convolution", mutates_args=())
def grouped_convolution(
    x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    """Every user's examples with its own filters."""
    s = _Sizes(x, w, stride, padding, dilation, groups)
    y = _empty(x, s.N, s.U, s.CO, s.OH, s.OW)
    if s.CI >= MANY:
        taps = w.reshape(s.U, s.CO, s.CI, s.KH * s.KW).permute(0, 3, 1, 2).contiguous()
        return _by_taps(x, taps, y, s.constants)
    bc, bp, bk = _block(s.CO), 128 if s.K <= 16 else 64, _block(s.K, 32)
    grid = (s.U * triton.cdiv(s.N * s.OH * s.OW, bp), triton.cdiv(s.CO, bc))
    _forward[grid](
        x, w.contiguous(), y, s.N, s.U, *_strides(x, s.U), *_strides(y, s.U), *s.constants,
        bc, bp, bk, _precision(), num_warps=2,
    )  # fmt: skip
    return y


@grouped_convolution.register_fake
def _(x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> Tensor:
    s = _Sizes(x, w, stride, padding, dilation, groups)
    return _empty(x, s.N, s.U, s.CO, s.OH, s.OW)


@custom_op("ucfl::grouped_convolution_input_gradient", mutates_args=())
def grouped_convolution_input_gradient(
    g: Tensor, x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    """The gradient with respect to the inputs.

    Without strides it is a convolution of g with the filters turned round. With few filters or
    strides, that would be many short products: all columns are made first and gathered then.
    """
    s = _Sizes(x, w, stride, padding, dilation, groups)
    dx = _empty(g, s.N, s.U, s.CI, s.H, s.W)
    if s.CO >= MANY and s.CI >= MANY and stride == [1, 1]:
        taps = w.reshape(s.U, s.CO, s.CI, s.KH * s.KW).flip(3).permute(0, 3, 2, 1).contiguous()
        reach = [dilation[i] * (w.shape[2 + i] - 1) - padding[i] for i in range(2)]
        sizes = (s.CO, s.OH, s.OW, s.CI, s.KH, s.KW, s.H, s.W, 1, 1, *reach, *dilation)
        return _by_taps(g, taps, dx, sizes)
    columns = g.new_empty(s.N, s.U, s.K, s.OH * s.OW, dtype=torch.float32)
    bp, bk, each = 64, 64, 4
    tiles = triton.cdiv(s.OH * s.OW, bp) * triton.cdiv(s.N, each)
    _columns[s.U * tiles, triton.cdiv(s.K, bk)](
        g, w.contiguous(), columns, s.N, s.U, each, *_strides(g, s.U), s.K, s.CO, s.OH, s.OW,
        bk, bp, _block(s.CO, 32), _precision(), num_warps=2,
    )  # fmt: skip
    _gather_columns[(triton.cdiv(dx.numel(), 1024),)](
        columns, dx, dx.numel(), s.U, *_strides(dx, s.U), s.CI,
        s.H, s.W, s.KH, s.KW, s.OH, s.OW, *s.moves, 1024, num_warps=8,
    )  # fmt: skip
    return dx


@grouped_convolution_input_gradient.register_fake
def _(
    g: Tensor, x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    s = _Sizes(x, w, stride, padding, dilation, groups)
    return _empty(g, s.N, s.U, s.CI, s.H, s.W)


@custom_op("ucfl::grouped_convolution_weight_gradient", mutates_args=())
def grouped_convolution_weight_gradient(
    g: Tensor, x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    """The gradient with respect to every user's filters."""
    s = _Sizes(x, w, stride, padding, dilation, groups)
    if s.CO >= 2 * MANY:
        bk, each, warps = _block(s.K), 16, 8
    else:
        bk, each, warps = _block(s.K, 32), 8, 4
    bc, bp, many = _block(s.CO), 32, s.CI >= MANY
    if many:
        x = x.contiguous(memory_format=torch.channels_last)
    parts = triton.cdiv(s.N, each)
    dw = g.new_empty(parts, *w.shape, dtype=torch.float32)
    grid = (s.U * parts, triton.cdiv(s.K, bk), triton.cdiv(s.CO, bc))
    _weight_gradient[grid](
        g, x, dw, s.N, s.U, each, *_strides(g, s.U), *_strides(x, s.U), *s.constants,
        bc, bk, bp, many, _precision(), num_warps=warps,
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
