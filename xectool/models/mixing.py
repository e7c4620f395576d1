"""The channel MLP's second half as one differentiable operation: GELU, global response normalisation, linear.

Axes: B events, P positions, F hidden features (4C), C channels.

With a = GELU(h), the response R = sqrt(sum over P of a^2), N = R / (mean over F of R + eps) and s = 1 + gamma N:

* forward: y = (a s + beta) W^T + b;
* backward: the gradient of a is gy (W s) + a k with k = (gradient of R) / R. Where a face has many more positions than
  channels, the gradients of W, s, beta and gamma follow from M = gy^T a, (B, C, F), and sums of gy alone.

Only h and R are kept for the backward pass; a is recomputed.

The time goes into passes over the hidden tensor (B, P, F). On the CPU they are made for a few events at a time, whose
part stays in the cache: over the whole tensor each one waits for the memory, and for fresh pages (GELU 1.1 against
0.25 ns an element).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from xectool.models import event_parts
from xectool.models.products import input_gradient, linear, wants_plain_operations, weight_gradient

RESPONSE_EPS = 1e-6
CACHED_BYTES = 2**22
_TINY = 1e-30  # keeps the response of a feature that is zero everywhere differentiable


class _Response(NamedTuple):
    size: Tensor
    relative: Tensor
    mean: Tensor
    scale: Tensor

    def of(self, part: slice) -> _Response:
        """Return the response of some events."""
        return _Response(*(values[part] for values in self))


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
        return _mixed(h, gamma, beta, weight, bias)[0]
    mixed: Tensor = _MixChannels.apply(h, gamma, beta, weight, bias)  # type: ignore[no-untyped-call]  # torch's own
    return mixed


class _MixChannels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, gamma: Tensor, beta: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        parts = event_parts.of(h, CACHED_BYTES)
        if parts == event_parts.WHOLE:
            mixed, size = _mixed(h, gamma, beta, weight, bias)
        else:
            mixed = h.new_empty((*h.shape[:2], weight.shape[0]))
            size = gamma.new_empty((h.shape[0], 1, h.shape[2]))
            for part in parts:
                mixed[part], size[part] = _mixed(h[part], gamma, beta, weight, bias)
        ctx.save_for_backward(h, gamma, beta, weight, size)
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        h, gamma, beta, weight, size = ctx.saved_tensors
        g_out = gradients[0].to(h.dtype)
        response = _response(size, gamma)
        g_h, g_scale = torch.empty_like(h), torch.empty_like(size)
        g_weight = torch.zeros_like(weight)
        chain = _chain_folded if h.shape[1] > 2 * weight.shape[0] else _chain_direct
        for part in event_parts.of(h, CACHED_BYTES):
            here, active = response.of(part), F.gelu(h[part])
            g_active, g_scale[part], g_part = chain(g_out[part], active, here.scale, weight)
            g_weight += g_part
            pull = _response_gradient(g_scale[part] * gamma, here) / here.size
            g_active.addcmul_(active, pull.to(h.dtype))
            torch.ops.aten.gelu_backward.grad_input(g_active, h[part], grad_input=g_h[part])
            del here, active, g_active, g_part, pull  # else the next part lies beside them
        g_bias = g_out.sum((0, 1), dtype=weight.dtype)
        g_gamma = (g_scale * response.relative).sum((0, 1))
        return g_h, g_gamma, torch.mv(weight.t(), g_bias), g_weight.addr_(g_bias, beta), g_bias


def _mixed(h: Tensor, gamma: Tensor, beta: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result of :func:`mix_channels`, and R (B, 1, F) in the dtype of gamma."""
    active = F.gelu(h)
    # Squares of half-precision values overflow or lose most digits.
    exact = active.to(gamma.dtype)
    size = exact.square().sum(dim=1, keepdim=True).clamp_min(_TINY).sqrt()
    scale = _response(size, gamma).scale
    scaled = torch.addcmul(beta.to(h.dtype), active, scale.to(h.dtype))
    return linear(scaled, weight.to(h.dtype), bias.to(h.dtype)), size


def _chain_folded(g_out: Tensor, active: Tensor, scale: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of a (without R's part), s and W (without beta's part), by products of each event."""
    if len(g_out) == 1:
        products = weight_gradient(g_out, active, weight.to(active.dtype)).unsqueeze(0).to(weight.dtype)
    else:
        products = torch.bmm(g_out.transpose(1, 2), active).to(weight.dtype)
    g_active = input_gradient(g_out, active, weight.to(active.dtype)).mul_(scale.to(active.dtype))
    return g_active, (products * weight).sum(1, keepdim=True), (products * scale).sum(0)


def _chain_direct(g_out: Tensor, active: Tensor, scale: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what :func:`_chain_folded` returns, by passes over the hidden tensor."""
    own_weight = weight.to(active.dtype)
    g_scaled = input_gradient(g_out, active, own_weight)
    g_scale = (g_scaled * active).sum(1, keepdim=True, dtype=weight.dtype)
    scale = scale.to(active.dtype)
    g_weight = weight_gradient(g_out, active * scale, own_weight).to(weight.dtype)
    return g_scaled.mul_(scale), g_scale, g_weight


def _response(size: Tensor, gamma: Tensor) -> _Response:
    mean = size.mean(dim=-1, keepdim=True) + RESPONSE_EPS
    relative = size / mean
    return _Response(size, relative, mean, 1 + gamma * relative)


def _response_gradient(g_relative: Tensor, response: _Response) -> Tensor:
    """Return the gradient of R, (B, 1, F), of that of N: dN_f/dR_g = 1[f=g]/m - N_f/(m F)."""
    common = (g_relative * response.relative).mean(dim=-1, keepdim=True)
    return (g_relative - common) / response.mean
