"""Rules on what a checkpoint says: numbers, averages, optimizer, progress, tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import torch

from xectool import __version__
from xectool.checkpoint.inspection.facts import Inspected
from xectool.checkpoint.inspection.layout import OLDER, Layout
from xectool.checkpoint.inspection.values import TensorStats, is_learned
from xectool.checkpoint.names import USE_ANOTHER
from xectool.config.tasks import TASK_WIDTHS
from xectool.errors import in_shell
from xectool.findings import Finding
from xectool.rules import Rule

_SHOWN: Final = 12
_HUGE: Final = 1e15  # float32 has no number for the sum of its squares over a layer much beyond
_WITH_WIDTH: Final = "gaussian_nll"
_EXPECTED_CONSTANT = ("bias", "gamma", "beta", "running_mean", "running_var", "log_vars")
_NOT_WEIGHTS = ("training.", "optimizer", "scheduler", "scaler", "callbacks", "loops", "lr_schedulers")


class ValuesAreFinite(Rule[Inspected]):
    """No NaN, no infinity, in weights and in moments."""

    code = "K08"
    title = "Every number is finite"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield an error for each of the first tensors with a value that is not finite."""
        bad = facts.nonfinite
        for name, found in list(bad.items())[:_SHOWN]:
            total = facts.contents.values[name].numel()
            problem = (
                f"{found.num_nonfinite} of {total} values of {name} are not finite; "
                f"the first is {found.first_value} at {list(found.first_nonfinite)}"
            )
            yield self.error(_place(facts, name), problem, USE_ANOTHER)
        if len(bad) > _SHOWN:
            yield self.error(
                "content", f"{len(bad) - _SHOWN} more tensors hold values that are not finite", USE_ANOTHER
            )


class ValuesArePlausible(Rule[Inspected]):
    """One weight far beyond all others is a flipped bit, or a step that went wrong."""

    code = "K08"
    title = "No weight stands far outside its tensor"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield an error for a value training cannot have made, a warning for one that is only unusual."""
        found = [(name, stats) for name, stats in facts.stats.items() if stats.outlier and not _is_state(name)]
        for name, stats in found[:_SHOWN]:
            assert stats.outlier is not None
            outlier = stats.outlier
            problem = (
                f"{name}{list(outlier.index)} is {outlier.value:.6g}; the next largest is {outlier.next_largest:.3g}, "
                f"the median {outlier.median:.3g}"
            )
            if outlier.impossible:
                yield self.error(_place(facts, name), f"{problem}: a damaged value, not a trained one", USE_ANOTHER)
            elif not facts.contents.checksums or not facts.is_intact or facts.outputs_differ:
                again = f"xectool inspect-ckpt {in_shell(facts.contents.path)}"
                fix = f"compare with another checkpoint of the run: {again} --compare OTHER"
                yield self.warning(_place(facts, name), f"{problem}: a flipped bit, or a step that went wrong", fix)
        yield from self._huge(facts)

    def _huge(self, facts: Inspected) -> Iterator[Finding]:
        """Yield an error for each of the first weights of which so many are huge that none stands out."""
        sizes = {name: max(-stats.minimum, stats.maximum) for name, stats in facts.stats.items() if not stats.outlier}
        huge = [name for name, size in sizes.items() if size > _HUGE and is_learned(name) and not _is_state(name)]
        for name in huge[:_SHOWN]:
            problem = f"the values of {name} reach {sizes[name]:.3g}: damaged, not trained"
            yield self.error(_place(facts, name), problem, USE_ANOTHER)


class WeightsMoved(Rule[Inspected]):
    """A matrix whose numbers are all the same has never been trained, or was lost."""

    code = "K08"
    title = "No weight matrix is constant"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield one note that names the constant matrices."""
        names = [name for name, stats in facts.stats.items() if _is_dead(facts, name, stats)]
        if names:
            problem = f"{len(names)} weight matrices hold one number everywhere: {', '.join(names[:5])}"
            yield self.info(names[0], problem, "train longer, or leave the layer out")


class ProgressIsFinite(Rule[Inspected]):
    """Epoch, best loss and history are numbers a run can have."""

    code = "K14"
    title = "Progress and metrics are finite and in order"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield an error for counters that cannot be, a warning for metrics that are not finite."""
        layout = facts.layout
        progress = layout.meta.get("progress")
        progress = progress if isinstance(progress, Mapping) else {}
        yield from self._counters(layout, progress)
        best = progress.get("best_loss", layout.meta.get("best_val_loss"))
        if isinstance(best, float) and not math.isfinite(best) and progress.get("best_epoch"):
            yield self.error("progress.best_loss", f"the best loss is {best}", USE_ANOTHER)
        if isinstance(best, float) and math.isnan(best):
            yield self.warning("best_val_loss", "the best validation loss is NaN", "validate again before using it")
        yield from self._metrics(progress.get("history"))

    def _counters(self, layout: Layout, progress: Mapping[str, Any]) -> Iterator[Finding]:
        for name, value in (("epoch", layout.epoch), ("step", layout.step)):
            if value is not None and value < 0:
                yield self.error(name, f"{name} is {value}", USE_ANOTHER)
            if name in progress and progress[name] != layout.meta.get(name):
                problem = f"{name} is {layout.meta.get(name)}, its progress says {progress[name]}"
                yield self.error(f"progress.{name}", problem, USE_ANOTHER)

    def _metrics(self, history: Any) -> Iterator[Finding]:
        for place, epoch in enumerate(history if isinstance(history, list) else ()):
            values = epoch if isinstance(epoch, Mapping) else {}
            bad = [key for key, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
            if bad:
                problem = f"epoch {place + 1}: {', '.join(bad[:4])} not finite"
                yield self.warning(f"progress.history[{place}]", problem, "xectool runs compare RUN RUN")


class HeadsFitTasks(Rule[Inspected]):
    """A head exists for every task, as wide as its loss needs; a plugin's kind may call its heads as it likes (K15)."""

    code = "K17"
    title = "Every configured task has its head"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield an error for a task without head, or with one of another width."""
        layout = facts.layout
        if layout.kind != "regressor" or not layout.is_ours:
            return
        for task, loss in tasks_of(layout).items():
            head = layout.main.get(f"heads.{task}.6.weight")
            expected = TASK_WIDTHS.get(task, 0) * (2 if loss == _WITH_WIDTH else 1)
            if head is None:
                yield self.error(
                    f"heads.{task}", f"task {task} is enabled and the weights have no head for it", USE_ANOTHER
                )
            elif head.shape[:1] != torch.Size([expected]):
                problem = f"the head of {task} gives {list(head.shape)[:1]} numbers, its task ({loss}) needs {expected}"
                yield self.error(f"heads.{task}.6.weight", problem, USE_ANOTHER)


class WeightsFitConfig(Rule[Inspected]):
    """The stored configuration rebuilds a network these weights fit."""

    code = "K15"
    title = "Weights and stored configuration belong together"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield one error that names the first contradictions."""
        if facts.misfits:
            more = f" and {len(facts.misfits) - 4} more" if len(facts.misfits) > 4 else ""
            listed, is_told = f"{'; '.join(facts.misfits[:4])}{more}", facts.layout.config is not None
            problem = f"the stored configuration does not describe these weights: {listed}"
            if not is_told:
                problem = f"these weights are not whole: {listed.replace('configuration gives', 'network has')}"
            finding = self.error("meta.config" if is_told else "weights", problem, USE_ANOTHER)
            yield replace(finding, evidence=facts.misfits[:20])


class TablesAgree(Rule[Inspected]):
    """Index tables say which sensor stands where; weights learnt with others see a scrambled detector."""

    code = "K16"
    title = "The geometry is the one this xectool computes"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield an error that names the tables."""
        if facts.foreign_tables:
            names = ", ".join(facts.foreign_tables[:3])
            problem = f"{len(facts.foreign_tables)} index tables are of another geometry: {names}"
            yield self.error(facts.foreign_tables[0], problem, _of_version(facts))


class OutputsAreReproduced(Rule[Inspected]):
    """The stored weights give what they gave when they were saved."""

    code = "K18"
    title = "Stored outputs are reproduced"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield an error for each set of weights that says how far outputs are off."""
        for role, found in facts.outputs_differ.items():
            which, place = ("average of the network", "_ema") if role == "ema" else ("network", "")
            problem = f"the {which} gives other numbers than when it was saved: {found}"
            if facts.version == __version__ or not facts.version:
                problem += "; weights, normalisation or pooling were changed after that"
            yield self.error(f"meta.fingerprint{place}", problem, _of_version(facts))


def tasks_of(layout: Layout) -> dict[str, str]:
    """Return the loss of each enabled task; files of the older system tell only which of them predict a width."""
    tasks = (layout.config or {}).get("tasks")
    if not isinstance(tasks, Mapping):
        return {}
    enabled = {name: task for name, task in tasks.items() if isinstance(task, Mapping) and task.get("enabled")}
    losses = {str(name): str(task.get("loss_fn", "")) for name, task in enabled.items()}
    if layout.origin != OLDER:
        return losses
    return {name: loss if loss == _WITH_WIDTH else "loss not stored" for name, loss in losses.items()}


def _of_version(facts: Inspected) -> str:
    """Return the fix for what another version reads as it was meant; this version is no such one."""
    return f"pip install xectool=={facts.version}" if facts.version not in ("", __version__) else USE_ANOTHER


def _place(facts: Inspected, name: str) -> str:
    ref = facts.contents.tensors[name]
    return ref.storage.where if ref.storage is not None and ref.storage.where else name


def _is_state(name: str) -> bool:
    return name.startswith(_NOT_WEIGHTS)


def _is_dead(facts: Inspected, name: str, stats: TensorStats) -> bool:
    value = facts.contents.values[name]
    is_matrix = value.ndim >= 2 and value.numel() > 1 and value.is_floating_point()
    expected = name.rsplit(".", 1)[-1] in _EXPECTED_CONSTANT
    return is_matrix and stats.constant and not expected and not _is_state(name)


CONTENT_RULES: tuple[Rule[Inspected], ...] = (
    ValuesAreFinite(), ValuesArePlausible(), WeightsMoved(), ProgressIsFinite(), HeadsFitTasks(), WeightsFitConfig(),
    TablesAgree(), OutputsAreReproduced(),
)  # fmt: skip
