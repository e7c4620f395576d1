"""``diagnose environment``: what of this machine and its settings will cost a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from xectool.diagnosis.environment import ENVIRONMENT_RULES, EnvironmentFacts, Reach, gather
from xectool.errors import UsageError
from xectool.findings import Finding
from xectool.rules import run_rules


@dataclass(frozen=True)
class EnvironmentDiagnosis:
    """The machine and what is wrong with it.

    Attributes:
        verdict: One line.
        facts: What was found out.
        findings: What the rules say, errors first.
        rules_run: Names of the rules that looked.
    """

    verdict: str
    facts: EnvironmentFacts
    findings: tuple[Finding, ...]
    rules_run: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing will stop or spoil a run."""
        return not any(found.severity.value == "error" for found in self.findings)


def environment(
    run: Path | str | None = None, *, tracking_uri: str = "", root: Path | str = "/"
) -> EnvironmentDiagnosis:
    """Look at versions, devices, limits, file systems and variables of this machine; nothing is changed.

    Args:
        run: Run directory whose file system is looked at as well.
        tracking_uri: Tracking address; default: that of the environment.
        root: Where ``proc``, ``sys`` and ``dev`` lie, for a machine that is looked at from outside.

    Raises:
        UsageError: A directory does not exist.
    """
    for path in (run, root):
        if path is not None and not Path(path).expanduser().is_dir():
            raise UsageError("no such directory", where=str(path), fix="xectool diagnose environment")
    run_dir = Path(run).expanduser().resolve() if run is not None else None
    return judge(gather(Reach(Path.cwd(), run_dir, tracking_uri, Path(root))))


def judge(facts: EnvironmentFacts) -> EnvironmentDiagnosis:
    """Return what the rules say about the facts of a machine."""
    done = run_rules(ENVIRONMENT_RULES, facts)
    order = {"error": 0, "warning": 1, "info": 2}
    findings = tuple(sorted(done.report, key=lambda found: order[found.severity.value]))
    return EnvironmentDiagnosis(_verdict(findings), facts, findings, done.ran)


def _verdict(findings: tuple[Finding, ...]) -> str:
    serious = [found for found in findings if found.severity.value != "info"]
    if not serious:
        return "nothing on this machine stands in the way of a run"
    more = f" (and {len(serious) - 1} more)" if len(serious) > 1 else ""
    return f"{serious[0].code}: {serious[0].problem}{more}"
