"""Truth that files lack: why there is no metric of a task, and which of their branches may hold it."""

from __future__ import annotations

from collections.abc import Sequence

from xectool.checks.probing import probe
from xectool.checks.truth_guesses import guess_truths
from xectool.config.inputs import input_name
from xectool.config.root import RegressorConfig
from xectool.data.events import EventSource
from xectool.engine.input_events import own_names
from xectool.engine.loading import LoadedModel
from xectool.errors import in_shell
from xectool.findings import Finding, Severity
from xectool.rootio.reader import EventFile


def missing_truth(loaded: LoadedModel, source: EventSource, names: Sequence[str]) -> tuple[Finding, ...]:
    """Return a note where no file has the truth of a task, with options that name a branch which may be it.

    Args:
        loaded: The model.
        source: The events it predicts.
        names: Settings of names that their files have in place of those of the training.
    """
    config = loaded.config
    tasks = [*config.tasks.enabled()] if isinstance(config, RegressorConfig) else []
    if not (lacking := [task for task in tasks if task not in source.branches.truth]):
        return ()
    section = config.data.model_copy(update=own_names(loaded, names))
    first = source.files[0]
    with EventFile(first.path, first.tree) as file:
        guesses, _ = guess_truths(file, probe(first.path, first.tree), section)
    options = [
        f"--set {in_shell(f'data.truth_branches.{task}={guesses[task].branch}')}" for task in lacking if task in guesses
    ]
    branches = ", ".join(f"'{section.truth_branches[task]}'" for task in lacking)
    return (
        Finding(
            "XT-DATA-NO-TRUTH",
            Severity.INFO,
            f"no metrics of {', '.join(lacking)}: the files have no branch {branches}",
            where=input_name(first.path, first.tree),
            fix=f"{' '.join(options)}   # if that is what {'it holds' if len(options) == 1 else 'they hold'}"
            if options
            else "",
        ),
    )
