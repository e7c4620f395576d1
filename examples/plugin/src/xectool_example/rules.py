"""A rule on configurations: a class with a code, a title, and a method that yields what breaks it."""

from __future__ import annotations

from collections.abc import Iterator

from xectool.config.root import RunConfig
from xectool.findings import Finding
from xectool.rules import Rule

HIGHEST = 1e-2


class RateIsModest(Rule[RunConfig]):
    """Nothing in our group has learnt at a rate above 0.01."""

    code = "EXAMPLE-01"
    title = "training.lr is at most 0.01"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning for a high rate."""
        if facts.training.lr > HIGHEST:
            yield self.warning("training.lr", f"training.lr {facts.training.lr:g} is high", f"training.lr: {HIGHEST}")
