"""A check of data files; it sees what `check-data` has counted, and reads nothing itself."""

from __future__ import annotations

from collections.abc import Iterator

from xectool.checks.data_facts import DataFacts
from xectool.findings import Finding
from xectool.rules import Rule

FEWEST = 100


class FilesHoldEnough(Rule[DataFacts]):
    """Our production writes at least a hundred events a file; fewer means that a job was killed."""

    code = "EXAMPLE-02"
    title = "A file holds at least 100 events"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield a warning for each file that is shorter."""
        for file in facts.sample.files:
            if file.opened and file.num_entries < FEWEST:
                problem = f"{file.num_entries} events; the production writes {FEWEST} or more"
                yield self.warning(file.where, problem, "look for the log of the job that wrote it")
