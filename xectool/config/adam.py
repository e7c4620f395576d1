"""How far one step of AdamW can move a weight."""

from __future__ import annotations

import math
from typing import Final

BETAS: Final = (0.9, 0.999)


def reach(beta1: float, beta2: float) -> float:
    """Return the most learning rates by which any course of gradients can let one step move a weight, decay aside.

    A step is the mean of the gradients over the root of the mean of their squares, which weigh a gradient k steps ago
    by ``(1 - beta1) beta1^k`` and ``(1 - beta2) beta2^k``. By the inequality of Cauchy and Schwarz it is largest for
    gradients that grow by ``beta2 / beta1`` a step: 7.3 rates, where a single one after quiet ones makes 3.2. The
    corrections of both means in the first steps only make it smaller.
    """
    return (1 - beta1) / math.sqrt((1 - beta2) * (1 - beta1**2 / beta2))


ADAM_REACH: Final = math.ceil(10 * reach(*BETAS)) / 10  # 7.3; rounded up, as moments are float32
