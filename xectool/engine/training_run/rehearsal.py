"""What a training would refuse, or warn of, as a dry run of it finds: for `config check --deep`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from xectool.config.load import LoadedConfig
from xectool.config.rules.count import COUNT_RULES
from xectool.engine.training import tried
from xectool.engine.training_run.first_look import file_findings
from xectool.engine.training_run.train_line import on_train_line, train_words
from xectool.errors import DeviceError, XecError
from xectool.findings import Finding, Severity, findings_of
from xectool.training.record.run_dir import choose_place, require_writable
from xectool.training.saving.refused import ResumeRefused

_ON = "--set training.device=auto   # or check it on the machine that it is for"
_OF_COUNTS = frozenset(rule.code for rule in COUNT_RULES)


def rehearsed(loaded: LoadedConfig, overrides: Sequence[str]) -> list[Finding]:
    """Return what a dry run says beside what was found; a device that is not here may be that of another machine.

    Args:
        loaded: The configuration, in which nothing was found that refuses it.
        overrides: ``key=value`` settings it was read with.
    """
    num_ranks, is_here = loaded.config.distributed.num_gpus, True

    def counted() -> Sequence[Finding]:
        return file_findings(loaded, require_writable(choose_place(loaded.config, None)), num_ranks)

    try:
        said = list(tried(loaded))
    except DeviceError as error:
        is_here, said = False, [replace(found, severity=Severity.WARNING, fix=_ON) for found in findings_of(error)]
    except ResumeRefused as error:
        return _beside(loaded, findings_of(error.with_line(train_words(loaded.path, overrides))))
    except XecError as error:
        return [on_train_line(item, loaded.path, overrides) for item in _beside(loaded, findings_of(error))]
    if num_ranks > 1 or not is_here:  # it was alone, or came to no file
        said = [*(item for item in said if item.code not in _OF_COUNTS), *_said(counted)]
    return [on_train_line(item, loaded.path, overrides) for item in _beside(loaded, said)]


def _said(look: Callable[[], Sequence[Finding]]) -> Sequence[Finding]:
    try:
        return look()
    except XecError as error:
        return findings_of(error)


def _beside(loaded: LoadedConfig, said: Sequence[Finding]) -> list[Finding]:
    """Return what was not told before, each once."""
    known = {(item.code, item.problem) for item in loaded.findings}
    new = {(item.code, item.problem): item for item in said}
    return [item for key, item in new.items() if key not in known]
