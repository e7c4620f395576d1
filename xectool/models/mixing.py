"""The channel MLP's second half as one differentiable operation: GELU, global response normalisation, linear.

Axes: B events, P positions, F hidden features (4C), C channels.

The block's time goes into passes over the hidden tensor (B, P, F), so all that can be is moved onto the small ones.
With a = GELU(h), the response R = sqrt(sum over P of a^2), N = R / (mean over F of R + eps) and s = 1 + gamma N:

* forward: y = (a s + beta) W^T + b = a (W s)^T + (W beta + b), per-event weights instead of a scaled hidden tensor;
* backward, with M = gy^T a, (B, C, F): the gradients of W, s, beta and gamma follow from M and sums of gy alone, and
  the gradient of a is gy (W s) + a k with k = (gradient of R) / R.

Where a face has fewer positions than channels the per-event weights are the larger ones, and s multiplies a instead.

Only h is kept for the backward pass; a is recomputed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

RESPONSE_EPS = 1e-6
_TINY = 1e-30  # keeps the response of a feature that is zero everywhere differentiable


class _Response(NamedTuple):
    size: Tensor
    relative: Tensor
    mean: Tensor
    scale: Tensor


def mix_channels(h: Tensor, gamma: Tensor, beta: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return (a s + beta) W^T + b with a = GELU(h), see the module; shape (B, P, C), in the dtype of h.

    Args:
        h: Hidden features before the activation, shape (B, P, F).
        gamma: Scale of the response normalisation, shape (F,).
        beta: Its offset, shape (F,).
        weight: W, shape (C, F).
        bias: b, shape (C,).
    """
    if wants_plain_operations():
        return _mixed(h, gamma, beta, weight, bias)
    mixed: Tensor = _MixChannels.apply(h, gamma, beta, weight, bias)  # type: ignore[no-untyped-call]  # torch's own
    return mixed


def wants_plain_operations() -> bool:
    """Return whether a graph is being made: compilers fuse plain operations themselves, traces hold nothing else."""
    return bool(torch.compiler.is_compiling() or torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


class _MixChannels(torch.autograd.Function):
    @staticmethod
    def forward(h: Tensor, gamma: Tensor, beta: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return _mixed(h, gamma, beta, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        h, gamma, beta, weight, _ = inputs
        ctx.save_for_backward(h, gamma, beta, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        h, gamma, beta, weight = ctx.saved_tensors
        g_out = gradients[0].to(h.dtype)
        active = F.gelu(h)
        response = _response(active, gamma)
        chain = _chain_folded if _folds(h, weight) else _chain_direct
        g_active, g_scale, g_weight = chain(g_out, active, response.scale, weight)
        g_bias = g_out.sum((0, 1), dtype=weight.dtype)
        g_gamma = (g_scale * response.relative).sum((0, 1))
        pull = _response_gradient(g_scale * gamma, response) / response.size
        g_h = torch.ops.aten.gelu_backward(g_active.addcmul_(active, pull.to(h.dtype)), h)
        return g_h, g_gamma, torch.mv(weight.t(), g_bias), g_weight + torch.outer(g_bias, beta), g_bias


def _mixed(h: Tensor, gamma: Tensor, beta: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    active = F.gelu(h)
    scale = _response(active, gamma).scale
    if not _folds(h, weight):
        scaled = torch.addcmul(beta.to(h.dtype), active, scale.to(h.dtype))
        return F.linear(scaled, weight.to(h.dtype), bias.to(h.dtype))
    offset = torch.mv(weight, beta) + bias
    return torch.baddbmm(offset.to(h.dtype), active, (weight * scale).to(h.dtype).transpose(1, 2))


def _folds(h: Tensor, weight: Tensor) -> bool:
    """Return whether per-event weights (C, F) are much smaller than the hidden tensor (P, F)."""
    return h.shape[1] > 2 * weight.shape[0]


def _chain_folded(g_out: Tensor, active: Tensor, scale: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of a (without R's part), s and W (without beta's part), by per-event products."""
    products = torch.bmm(g_out.transpose(1, 2), active).to(weight.dtype)
    g_active = torch.bmm(g_out, (weight * scale).to(active.dtype))
    return g_active, (products * weight).sum(1, keepdim=True), (products * scale).sum(0)


def _chain_direct(g_out: Tensor, active: Tensor, scale: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what :func:`_chain_folded` returns, by passes over the hidden tensor."""
    g_scaled = torch.matmul(g_out, weight.to(active.dtype))
    g_scale = (g_scaled * active).sum(1, keepdim=True, dtype=weight.dtype)
    scale = scale.to(active.dtype)
    g_weight = torch.mm(g_out.flatten(0, 1).t(), (active * scale).flatten(0, 1)).to(weight.dtype)
    return g_scaled.mul_(scale), g_scale, g_weight


def _response(active: Tensor, gamma: Tensor) -> _Response:
    # Squares of half-precision values overflow or lose most digits.
    exact = active if active.dtype in (torch.float32, torch.float64) else active.float()
    size = exact.square().sum(dim=1, keepdim=True).clamp_min(_TINY).sqrt()
    mean = size.mean(dim=-1, keepdim=True) + RESPONSE_EPS
    relative = size / mean
    return _Response(size, relative, mean, 1 + gamma * relative)


def _response_gradient(g_relative: Tensor, response: _Response) -> Tensor:
    """Return the gradient of R, (B, 1, F), of that of N: dN_f/dR_g = 1[f=g]/m - N_f/(m F)."""
    common = (g_relative * response.relative).mean(dim=-1, keepdim=True)
    return (g_relative - common) / response.mean
