"""Averaged weights for validation, prediction and export."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import Tensor, nn
from torch.optim import swa_utils
from torch.optim.swa_utils import AveragedModel

# torch leaves this one function without types
_ema_multi_avg_fn = cast("Callable[[float], Callable[..., None]]", swa_utils.get_ema_multi_avg_fn)


class WeightAverage:
    """Exponential moving average of a model's weights, or nothing at all when decay is None.

    Args:
        model: The trained model.
        decay: Share of the old average kept at each step, in (0, 1); None keeps no average.
    """

    def __init__(self, model: nn.Module, decay: float | None) -> None:
        self._model = model
        self._average = (
            AveragedModel(model, multi_avg_fn=_ema_multi_avg_fn(decay), use_buffers=False)
            if decay is not None
            else None
        )

    @property
    def best_model(self) -> nn.Module:
        """The module to evaluate with: the average where one is kept, else the model itself."""
        if self._average is None:
            return self._model
        module = self._average.module
        assert isinstance(module, nn.Module)
        return module

    def update(self) -> None:
        """Fold in the current weights; called after each optimizer step that changed them."""
        if self._average is not None:
            self._average.update_parameters(self._model)

    def weights(self) -> dict[str, Tensor]:
        """Return the averaged weights by the model's own keys; empty without an average."""
        return {} if self._average is None else dict(self.best_model.state_dict())

    @property
    def num_averaged(self) -> int:
        """How many updates the average has seen."""
        return 0 if self._average is None else int(self._average.n_averaged)

    def load(self, weights: dict[str, Tensor], num_averaged: int) -> None:
        """Continue an average, or start one from ``weights`` when none was saved.

        Turning EMA on at a resume starts the average at the resumed weights.
        """
        if self._average is None:
            return
        self.best_model.load_state_dict(weights or self._model.state_dict())
        self._average.n_averaged.fill_(num_averaged)
