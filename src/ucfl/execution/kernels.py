"""Convolutions of all users as implicit matrix products in Triton, a user per grid coordinate.

Inputs are [N, U·CI, H, W], weights [U·CO, CI, KH, KW], with strides of any layout, U users of N
examples each; n, u, co, ci are their coordinates, r a pixel of the output, k = (ci, kh, kw) a place
in the filter. :mod:`~ucfl.execution.operations` starts them.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (Triton's kernels are a language of their own.)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def measured(parts, acc, inside, tile, u, co, U, CO: tl.constexpr, PIXELS: tl.constexpr):
    """parts[tile, u, co]: the mean over the tile's pixels, and the squared differences from it.

    ``PIXELS`` is the axis of ``acc`` that they are, for :func:`combined_statistics`.
    """
    mean = tl.sum(acc, PIXELS) / tl.sum(inside.to(tl.float32))
    away = acc - tl.expand_dims(mean, PIXELS)
    away = tl.where(tl.expand_dims(inside, 1 - PIXELS), away, 0.0)
    at = parts + ((tile * U + u) * CO + co) * 2
    tl.store(at, mean, mask=co < CO)
    tl.store(at + 1, tl.sum(away * away, PIXELS), mask=co < CO)


@triton.jit
def few_channels(x, w, y, parts, N, U, xn, xu, xc, xh, xw, yn, yu, yc, yh, yw,
                 CI: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr,
                 KH: tl.constexpr, KW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
                 SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
                 DH: tl.constexpr, DW: tl.constexpr,
                 BC: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr,
                 PRECISION: tl.constexpr, STATISTICS: tl.constexpr):  # fmt: skip
    """y[n, u, co, r] = Σ_k w[u, co, k] x[n, u, k shifted by r], k = (ci, kh, kw): few channels.

    With ``STATISTICS``, every tile is :func:`measured`.
    """
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
    if STATISTICS:
        measured(parts, acc, inside, tile, u, co, U, CO, 1)


@triton.jit
def few_taps(x, w, y, parts, N, U, xn, xu, xc, xh, xw, yn, yu, yc, yh, yw,
             CI: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr,
             KH: tl.constexpr, KW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
             SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
             DH: tl.constexpr, DW: tl.constexpr,
             BC: tl.constexpr, BP: tl.constexpr, STATISTICS: tl.constexpr):  # fmt: skip
    """:func:`few_channels` with k so short that a product of matrices would be mostly padding."""
    K: tl.constexpr = CI * KH * KW
    u, tile = (tl.program_id(0) % U).to(tl.int64), tl.program_id(0) // U
    p = tile * BP + tl.arange(0, BP)
    co = tl.program_id(1) * BC + tl.arange(0, BC)
    n, r = p // (OH * OW), p % (OH * OW)
    top, left = (r // OW) * SH - PH, (r % OW) * SW - PW
    base = x + u * xu + n.to(tl.int64) * xn + top * xh + left * xw
    inside = n < N
    acc = tl.zeros((BP, BC), dtype=tl.float32)
    for k in tl.static_range(K):
        down, right = k % (KH * KW) // KW * DH, k % KW * DW
        ok = inside
        if PH > 0 or PW > 0:
            ih, iw = top + down, left + right
            ok = ok & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        pixel = tl.load(base + (k // (KH * KW) * xc + down * xh + right * xw), mask=ok, other=0.0)
        weight = tl.load(w + (u * CO + co) * K + k, mask=co < CO, other=0.0)
        acc += pixel.to(tl.float32)[:, None] * weight.to(tl.float32)[None, :]
    out = y + u * yu + n.to(tl.int64) * yn + (r // OW) * yh + (r % OW) * yw
    tl.store(out[:, None] + (co * yc)[None, :], acc, mask=inside[:, None] & (co < CO)[None, :])
    if STATISTICS:
        measured(parts, acc, inside, tile, u, co, U, CO, 0)


@triton.jit
def many_channels(x, w, y, parts, N, U, xn, xu, xc, xh, xw, yn, yu, yc, yh, yw,
                  CI: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr,
                  KH: tl.constexpr, KW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
                  SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
                  DH: tl.constexpr, DW: tl.constexpr,
                  BC: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr,
                  PRECISION: tl.constexpr, STATISTICS: tl.constexpr,
                  STAGES: tl.constexpr):  # fmt: skip
    """y[n, u, co, r] = Σ_tap Σ_ci w[u, tap, co, ci] x[n, u, ci, r shifted]: many channels.

    Tap by tap, places and masks are computed once for all channels, which lie side by side. For
    ``STATISTICS`` see :func:`few_channels`.
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
    if STATISTICS:
        measured(parts, acc, inside, tile, u, co, U, CO, 0)


@triton.jit
def combined_statistics(parts, var, mean, TILES, CHANNELS, PIXELS, EACH,
                        BT: tl.constexpr, BC: tl.constexpr):  # fmt: skip
    """Variances and means over all PIXELS, of parts that are over tiles of EACH of them.

    Two groups of n and k with means μ, ν and squared differences q, r are one with
    q + r + (μ − ν)² n k / (n + k): tile after tile in every lane, then over lanes.
    """
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    pixels = tl.zeros((BT, 1), dtype=tl.float32)
    means = tl.zeros((BT, BC), dtype=tl.float32)
    squares = tl.zeros((BT, BC), dtype=tl.float32)
    for t0 in range(0, TILES, BT):
        t = t0 + tl.arange(0, BT)
        more = tl.minimum(tl.maximum(PIXELS - t * EACH, 0), EACH)[:, None].to(tl.float32)
        ok = (t < TILES)[:, None] & (c < CHANNELS)[None, :]
        at = parts + (t[:, None] * CHANNELS + c[None, :]) * 2
        away = tl.load(at, mask=ok, other=0.0) - means
        share = more / tl.maximum(pixels + more, 1.0)
        squares += tl.load(at + 1, mask=ok, other=0.0) + away * away * (pixels * share)
        means += away * share
        pixels += more
    whole = tl.sum(means * pixels, 0) / PIXELS
    away = means - whole[None, :]
    total = tl.sum(squares + away * away * pixels, 0)
    tl.store(mean + c, whole, mask=c < CHANNELS)
    tl.store(var + c, total / PIXELS, mask=c < CHANNELS)


@triton.jit
def columns(g, w, columns, N, U, each, gn, gu, gc, gh, gw,
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
def gather_columns(columns, dx, total, U, xn, xu, xc, xh, xw, CI: tl.constexpr,
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
def weight_gradient(g, x, dw, sums, N, U, gn, gu, gc, gh, gw, xn, xu, xc, xh, xw,
                    CI: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr,
                    KH: tl.constexpr, KW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
                    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
                    DH: tl.constexpr, DW: tl.constexpr, EACH: tl.constexpr,
                    BC: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr,
                    TAPS_FIRST: tl.constexpr, PRECISION: tl.constexpr,
                    SUMMED: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """dw[part, u, co, k] = Σ over the part's EACH images and all r of g[n, u, co, r] x[n, u, k, r].

    Parts are summed afterwards, in a fixed order: atomic additions would not repeat. With
    ``TAPS_FIRST``, k = (kh, kw, ci): neighbours in a tile are neighbouring channels, as they lie.
    With ``SUMMED``, sums[part, u, co] = Σ g[n, u, co, r], the gradient of a bias.
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
    g += u * gu + (part * EACH).to(tl.int64) * gn
    x += u * xu + (part * EACH).to(tl.int64) * xn
    images = tl.minimum(EACH, N - part * EACH)
    acc = tl.zeros((BC, BK), dtype=tl.float32)
    total = tl.zeros((BP, BC), dtype=tl.float32)
    for p0 in tl.range(0, EACH * OH * OW, BP, num_stages=STAGES):
        p = p0 + tl.arange(0, BP)
        n, r = (p // (OH * OW)).to(tl.int64), p % (OH * OW)
        oh, ow = r // OW, r % OW
        inside = n < images
        gs = g + (n * gn + oh * gh + ow * gw)[:, None] + (co * gc)[None, :]
        xs = x + (n * xn + oh * (SH * xh) + ow * (SW * xw))[:, None] + shift[None, :]
        ok = inside[:, None] & (k < K)[None, :]
        if PH > 0 or PW > 0:
            ih, iw = (oh * SH)[:, None] + down[None, :], (ow * SW)[:, None] + right[None, :]
            ok = ok & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        a = tl.load(gs, mask=inside[:, None] & (co < CO)[None, :], other=0.0)
        b = tl.load(xs, mask=ok, other=0.0)
        acc = tl.dot(tl.trans(a), b, acc, input_precision=PRECISION)
        if SUMMED:
            total += a
    out = (part * U + u) * CO + co
    tl.store(dw + out[:, None] * K + k[None, :], acc, mask=(co < CO)[:, None] & (k < K)[None, :])
    if SUMMED:
        mine = tl.where(tl.program_id(1) == 0, CO, 0)
        tl.store(sums + out, tl.sum(total, 0), mask=co < mine)


@triton.jit
def pixels_together(t, out, N, U, tn, tu, tc, th, tw, C: tl.constexpr,
                    H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
                    BC: tl.constexpr, BP: tl.constexpr):  # fmt: skip
    """out[u, c, n, h, w] = t[n, u, c, h, w] with zeros around."""
    HP: tl.constexpr = H + 2 * PH
    WP: tl.constexpr = W + 2 * PW
    u, tile = (tl.program_id(0) % U).to(tl.int64), tl.program_id(0) // U
    p = tile * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    n, r = p // (HP * WP), p % (HP * WP)
    h, w = r // WP - PH, r % WP - PW
    ok = (n < N) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
    source = t + u * tu + n.to(tl.int64) * tn + h * th + w * tw
    inside = (c < C)[None, :]
    values = tl.load(source[:, None] + (c * tc)[None, :], mask=ok[:, None] & inside, other=0.0)
    target = out + (u * C + c)[None, :] * (N * HP * WP) + p[:, None]
    tl.store(target, values, mask=(p < N * HP * WP)[:, None] & inside)


@triton.jit
def weight_gradient_of_pixels(g, x, dw, N, U, CI: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
                              CO: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
                              OH: tl.constexpr, OW: tl.constexpr,
                              SH: tl.constexpr, SW: tl.constexpr,
                              DH: tl.constexpr, DW: tl.constexpr, EACH: tl.constexpr,
                              BC: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr,
                              EVEN: tl.constexpr, PRECISION: tl.constexpr,
                              STAGES: tl.constexpr):  # fmt: skip
    """:func:`weight_gradient`, taps first, of :func:`pixels_together`: g [u, co, p], x [u, ci, …].

    The sum goes along pixels, so it is they that must lie side by side for the tensor cores. x has
    its zeros around it: no tap is ever outside. ``EVEN`` says that tiles fill everything.
    """
    K: tl.constexpr = CI * KH * KW
    u, part = (tl.program_id(0) % U).to(tl.int64), tl.program_id(0) // U
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    co = tl.program_id(2) * BC + tl.arange(0, BC)
    kk, ci = tl.minimum(k // CI, KH * KW - 1), k % CI
    shift = ci * (N * H * W) + kk // KW * (DH * W) + kk % KW * DW
    g += (u * CO * N + part * EACH) * (OH * OW)
    x += (u * CI * N + part * EACH) * (H * W)
    last = tl.minimum(EACH, N - part * EACH) * (OH * OW)
    acc = tl.zeros((BC, BK), dtype=tl.float32)
    for p0 in tl.range(0, EACH * OH * OW, BP, num_stages=STAGES):
        p = p0 + tl.arange(0, BP)
        n, r = p // (OH * OW), p % (OH * OW)
        gs = g + (co * (N * OH * OW))[:, None] + p[None, :]
        xs = x + (n * (H * W) + r // OW * (SH * W) + r % OW * SW)[:, None] + shift[None, :]
        if EVEN:
            a, b = tl.load(gs), tl.load(xs)
        else:
            inside = p < last
            a = tl.load(gs, mask=inside[None, :] & (co < CO)[:, None], other=0.0)
            b = tl.load(xs, mask=inside[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    out = dw + ((part * U + u) * CO + co)[:, None] * K + k[None, :]
    tl.store(out, acc, mask=(co < CO)[:, None] & (k < K)[None, :])
