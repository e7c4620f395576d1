"""What a shell offers after an option; each is loaded only when a shell asks."""

from __future__ import annotations

from collections.abc import Callable


def offered(of: str) -> Callable[[str], list[str]]:
    """Return what Typer calls with the begun word: a function of `xectool.engine.completions` by its name."""

    def complete(incomplete: str) -> list[str]:
        from xectool.engine import completions

        found: list[str] = getattr(completions, of)(incomplete)
        return found

    return complete
