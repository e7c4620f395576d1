"""Rules of the guards."""

from __future__ import annotations

from collections.abc import Iterator

from xectool.config.guard_catalogue import BY_NAME
from xectool.config.root import RunConfig
from xectool.findings import Finding
from xectool.rules import Rule


class GuardsAreOn(Rule[RunConfig]):
    """A guard that is off, or set so that it cannot do what it is for, should be a decision."""

    code = "CFG-63"
    title = "Guards are on and can act"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning for guards that are off, an error for limits that contradict each other."""
        guards = facts.guards
        if guards.on_spike == "rewind" and not guards.active("G06"):
            yield self.error(
                "guards.on_spike",
                "guards.on_spike: rewind needs the guard that guards.disable turns off (G06)",
                "guards.disable: []",
            )
        elif guards.disable:
            names = ", ".join(f"{code} ({BY_NAME[code].name}: {BY_NAME[code].title})" for code in guards.disable)
            yield self.warning("guards.disable", f"guards.disable: off are {names}", "guards.disable: []")
        if guards.memory_warning > guards.memory_stop:
            yield self.error(
                "guards.memory_warning",
                f"guards.memory_warning {guards.memory_warning:g} is above guards.memory_stop {guards.memory_stop:g}: "
                "the run would stop before it warns",
                f"guards.memory_warning: {0.8 * guards.memory_stop:g}",
            )
        if guards.hang_abort_s is not None and guards.hang_abort_s < guards.hang_s:
            yield self.error(
                "guards.hang_abort_s",
                f"guards.hang_abort_s {guards.hang_abort_s:g} is below guards.hang_s {guards.hang_s:g}: nothing is "
                "a hang before that",
                f"guards.hang_abort_s: {10 * guards.hang_s:g}",
            )


GUARD_RULES: tuple[Rule[RunConfig], ...] = (GuardsAreOn(),)
