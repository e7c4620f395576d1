"""What keeps a fault from doing harm while a run goes on; one file a family of guards.

`xectool.config.guard_catalogue` lists them all with period and action.
"""

from __future__ import annotations

from xectool.training.guards.nonfinite import NonFiniteGuard, nonfinite_gradients, nonfinite_weights

__all__ = ["NonFiniteGuard", "nonfinite_gradients", "nonfinite_weights"]
