"""Whether a checkpoint may continue under a configuration, and on these data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from xectool.checkpoint.format import FORMAT_NAME, Checkpoint
from xectool.checkpoint.inspection.training_state import schedule_problem
from xectool.checkpoint.transfer import require_kind_of
from xectool.config.inputs import present_inputs, split_tree
from xectool.config.left_out import leaves_out_alike
from xectool.config.load import config_from_dict
from xectool.config.order_keys import ORDER_KEYS
from xectool.config.root import RunConfig
from xectool.config.serialize import inline_yaml, starting_from
from xectool.data.events import EventSource
from xectool.errors import CheckpointError, counted, in_shell
from xectool.errors.run_names import run_name
from xectool.models.regressor import GAUSSIAN_NLL
from xectool.training.saving.late_exclusion import saved_exclude
from xectool.training.saving.refused import RESUME_KEY, ResumeRefused
from xectool.training.saving.resolved import frozen

# Keys that change what the weights mean; a resume with another value would train on silently wrong.
OUTPUT_KEYS = (
    "kind", "normalization", "model", "tasks", "training.auto_channel_weight",
    "data.npho_branch", "data.time_branch", "data.truth_branches",
)  # fmt: skip
# How the network learns, not what its weights mean.
_LEARNING = frozenset({"dropout", "drop_path_rate", "head_dropout"})
# What the validation loss is made of; another value only makes it another number.
_MASKS = frozenset({"mask_ratio", "mask_npho_flat", "mask_patterns"})
_LOSSES = frozenset({"loss_fn", "loss_beta", "weight", "npho_weight", "time", "npho_loss_weight"})
# Positions of sensors are taken from the checkpoint, whatever file is named.
_RESTORED = frozenset({"sensor_positions_file"})
_FILES, _UNNAMED, _BATCH = "data.train_path", "no file is named", "data.batch_size"
_OTHER_MEANING = "would change what the weights mean, or which of them learn"
_OTHER_BATCHES = "would serve other batches in the middle of an epoch"
_NETWORK = ("model.", "normalization.", "training.auto_channel_weight")


def data_facts(train: EventSource) -> dict[str, Any]:
    """Return the identity of the training data that a checkpoint carries."""
    files = [
        {"name": Path(f.path).name, "events": f.num_selected, "entries": f.num_entries, "path": f.name}
        for f in train.files
    ]
    return {"train_files": files}


def require_resumable(
    config: RunConfig, checkpoint: Checkpoint, train: EventSource | None, path: Path, world_size: int = 1
) -> None:
    """Refuse a resume that would go on with other inputs, outputs or, inside an epoch, other batches.

    Another number of ranks goes on with the events that are left, and may share the same batch among them.

    Args:
        config: What the run is to go on with.
        checkpoint: What it goes on from.
        train: The training events; None leaves it open whether they are the same.
        path: The file of the checkpoint.
        world_size: Ranks it goes on with.

    Raises:
        CheckpointError: The checkpoint holds no place in a run or lost its average, or keys differ; the message lists
            each with both values.
        ConfigError: No installed package brings its kind.
    """
    require_kind_of(checkpoint)
    if not checkpoint.training or "progress" not in checkpoint.meta:
        is_ours = checkpoint.origin == FORMAT_NAME
        lacking = "holds no place in a run" if checkpoint.training else "holds weights only"
        lacking = lacking if is_ours else "is of the older system or another program"
        problem = f"this checkpoint {lacking}, so a run cannot resume from it"
        raise _only_anew(problem, config, checkpoint, path, "XT-CKPT-NO-TRAINING")
    checkpoint.require_average(
        str(path), "xectool train CONFIG --resume auto   # the newest sound checkpoint of the run"
    )
    if problem := schedule_problem(checkpoint.meta, checkpoint.config):
        raise _only_anew(f"the rates of a resume would be wrong: {problem}", config, checkpoint, path, "K11")
    meanings, batches = meaning_differences(config, checkpoint), list[tuple[str, Any, Any]]()
    if int(checkpoint.meta["progress"]["batch"]) > 0 and not config.checkpoint.reset_epoch:
        batches = _order_differences(config, checkpoint, train, world_size)
    effects = [_OTHER_MEANING] * bool(meanings) + [_OTHER_BATCHES] * bool(batches)
    if effects:
        anew = _anew(config, checkpoint, path)
        batch = _batch_of_ranks(checkpoint, world_size)
        was = _files_that_are_there(checkpoint, [] if train is None else [file.name for file in train.files])
        raise _refusal(" and ".join(effects), [*meanings, *batches], path, (anew, batch, was))


def _files_that_are_there(checkpoint: Checkpoint, now: Sequence[str]) -> list[str]:
    """Return the training files of a checkpoint by the paths they had.

    None where one of them is gone or not told, or where they are those of now: then they hold something else.
    """
    paths = [str(of.get("path") or "") for of in checkpoint.meta.get("train_files") or ()]
    is_there = all(path and os.path.exists(split_tree(path)[0]) for path in paths)
    return paths if is_there and paths != [*now] else []


def _batch_of_ranks(checkpoint: Checkpoint, world_size: int) -> tuple[int, str]:
    """Return the batch size that keeps the events of a step over all ranks, or the saved one, and words on it."""
    size, before = int(checkpoint.config["data"]["batch_size"]), int(checkpoint.meta.get("world_size", 1))
    shared, rest = divmod(before * size, world_size)
    if rest:
        return size, f", with {counted(before, 'rank')}"
    return shared, "" if before == world_size else f": {before * size} events over {counted(world_size, 'rank')}"


def _order_differences(
    config: RunConfig, checkpoint: Checkpoint, train: EventSource | None, world_size: int
) -> list[tuple[str, Any, Any]]:
    """Return the keys on which the rest of an epoch would have other batches, with both values."""
    current, saved = config.to_dict(), checkpoint.config
    shared = {_BATCH} if config.data.batch_size == _batch_of_ranks(checkpoint, world_size)[0] else set()
    files = present_inputs(config.data.train_path) if train is None else [file.name for file in train.files]
    if leaves_out_alike(config.data, saved_exclude(checkpoint, files), files):
        shared.add("data.exclude")
    # A checkpoint from before a key was there was written under its default, as nearly all are that go on now.
    keys = [key for key in ORDER_KEYS if key not in shared and _at(saved, key) is not None]
    differing = [d for key in keys for d in differences(_at(saved, key), _at(current, key), key)]
    if train is not None and not any(key.startswith(("data.exclude", "data.fiducial")) for key, _, _ in differing):
        differing += _file_differences(checkpoint.meta.get("train_files") or (), data_facts(train)["train_files"])
    return differing


def _file_differences(
    saved: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the first file of the data that is not as the checkpoint has it, with both names and numbers of events."""
    if not saved:
        yield _FILES, _UNNAMED, counted(len(now), "file")
        return
    for place, (before, after) in enumerate(zip_longest(saved, now)):
        if _without_path(before) != _without_path(after):
            number = f"file {place + 1} of {max(len(saved), len(now))}"
            yield _FILES, f"{number} is {_file(before)}", _file(after)
            return


def _without_path(facts: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (facts or {}).items() if key != "path"}


def _file(facts: Mapping[str, Any] | None) -> str:
    if facts is None:
        return "missing"
    return f"{facts['name']} with {facts['events']} of {facts['entries']} events"


def meaning_differences(config: RunConfig, checkpoint: Checkpoint) -> list[tuple[str, Any, Any]]:
    """Return the keys on which a configuration gives the weights of a checkpoint another meaning, with both values."""
    current, saved = config.to_dict(), _written_out(checkpoint)
    stored = [key for key in OUTPUT_KEYS if _at(checkpoint.config, key) is not None]
    found = [d for key in stored for d in differences(_at(saved, key), _at(current, key), key)]
    found = [d for d in found if not (is_free(*d) or is_idle(d[0], saved, current))]
    return [d for d in found if not (_is_untold(d[0], checkpoint) or _is_same_width(d[0], saved, current))]


def _written_out(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the configuration of a checkpoint; what files of the older system leave out has its default there."""
    if checkpoint.origin == FORMAT_NAME or not checkpoint.config:
        return checkpoint.config
    return config_from_dict(checkpoint.config, checkpoint.origin).to_dict()


def _is_untold(key: str, checkpoint: Checkpoint) -> bool:
    """Return whether a file of the older system does not tell what its weights were trained with."""
    is_logarithm = key.startswith("tasks.") and key.endswith(".log_transform")
    return checkpoint.origin != FORMAT_NAME and (is_logarithm or key in checkpoint.meta.get("assumed", ()))


def _is_same_width(key: str, saved: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
    """Return whether only null stands for the width 4 D that the other side writes out."""
    if key != "model.dim_feedforward":
        return False
    one, other = (
        values["model"].get("dim_feedforward") or 4 * values["model"]["encoder_dim"] for values in (saved, current)
    )
    return bool(one == other)


def objective_changes(config: RunConfig, checkpoint: Checkpoint) -> list[str]:
    """Return the keys that differ and make the validation losses before and after incomparable."""
    current, saved = config.to_dict(), checkpoint.config
    found = [d for key in ("model", "tasks", "training") for d in differences(saved.get(key), current.get(key), key)]
    return [key for key, _, _ in found if is_objective(key) and not is_idle(key, saved, current)]


def is_objective(key: str) -> bool:
    """Return whether a key decides which number the validation loss is, such as the share of hidden sensors."""
    section, *rest = key.split(".")
    name = rest[1:2] if section == "tasks" else rest[:1]
    return section in ("model", "tasks", "training") and bool((_MASKS | _LOSSES) & {*name})


def is_free(key: str, saved: Any, current: Any) -> bool:
    """Return whether a key of the network or of a task may have another value at a resume."""
    if key.endswith(".loss_fn") and GAUSSIAN_NLL in (saved, current):  # it predicts a width as well
        return False
    return is_objective(key) or bool((_LEARNING | _RESTORED) & {*key.split(".")})


def is_idle(key: str, saved: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
    """Return whether a key belongs to a task that is off before and after."""
    section, _, rest = key.removeprefix("data.").partition(".")
    task = rest.partition(".")[0]
    if section not in ("tasks", "truth_branches") or not task:
        return False
    return not any(values.get("tasks", {}).get(task, {}).get("enabled") for values in (saved, current))


def differences(saved: Any, current: Any, key: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield each leaf of two nested values that differs, as ``(dotted key, saved, current)``."""
    if isinstance(saved, dict) and isinstance(current, dict):
        for name in sorted(saved.keys() | current.keys()):
            yield from differences(saved.get(name), current.get(name), f"{key}.{name}")
    elif frozen(saved) != frozen(current):
        yield key, saved, current


def start_options(config: RunConfig, checkpoint: Checkpoint, path: Path) -> str:
    """Return the options that start a new run from the weights of a checkpoint, seeing events as it does."""
    return " ".join([starting_from(path), *network_options(config, checkpoint)])


def network_options(config: RunConfig, checkpoint: Checkpoint) -> list[str]:
    """Return the options that describe the network of a checkpoint of the same kind where the configuration differs."""
    is_same = bool(checkpoint.config) and checkpoint.kind == config.kind
    found = meaning_differences(config, checkpoint) if is_same else []
    fitting = [as_saved(key, saved) for key, saved, _ in found if key.startswith(_NETWORK)]
    if is_same:
        fitting += _head_options(checkpoint.config.get("tasks", {}), config.to_dict().get("tasks", {}))
    return fitting


def _head_options(saved: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options that give every head the width it has in a checkpoint; the task says which loss it learns."""
    for name, now in current.items():
        before = saved.get(name, {})
        was_wide = _predicts_width(before)
        if was_wide == _predicts_width(now):
            continue
        loss = before.get("loss_fn", GAUSSIAN_NLL)
        narrow = {"loss_fn": "smooth_l1" if loss == GAUSSIAN_NLL else loss}
        wanted = {"enabled": True, "loss_fn": GAUSSIAN_NLL} if was_wide else narrow
        yield from (as_saved(f"tasks.{name}.{key}", value) for key, value in wanted.items() if now.get(key) != value)


def _predicts_width(task: Mapping[str, Any]) -> bool:
    return bool(task.get("enabled")) and task.get("loss_fn") == GAUSSIAN_NLL


def _only_anew(problem: str, config: RunConfig, checkpoint: Checkpoint, path: Path, code: str) -> CheckpointError:
    return ResumeRefused.of(problem, str(path), ("", ""), _anew(config, checkpoint, path), code)


def _anew(config: RunConfig, checkpoint: Checkpoint, path: Path) -> str:
    """Return the options of a new run, with a name of its own, from the weights of a checkpoint."""
    unset = [f"--set {RESUME_KEY}=null"] if config.checkpoint.resume_from else []
    run = Path(os.path.abspath(path)).parent.name or path.stem
    name = run_name(run, "-again", Path(config.checkpoint.save_dir).expanduser())
    return " ".join([start_options(config, checkpoint, path), *unset, "--run-name", name])


def _refusal(
    effect: str, differing: list[tuple[str, Any, Any]], path: Path, lines: tuple[str, tuple[int, str], list[str]]
) -> CheckpointError:
    """Return the refusal; ``lines``: options of a new run, batch size to keep with words on it, files as they were."""
    shown = "; ".join(f"{key}: {saved} in the checkpoint, {current} now" for key, saved, current in differing[:5])
    more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
    anew, batch, files = lines
    keys = [key for key, _, _ in differing]
    pasted = [as_saved(key, batch[0] if key == _BATCH else saved) for key, saved, _ in differing if key != _FILES]
    remark = f"as in the checkpoint{batch[1] if _BATCH in keys else ''}"
    if _FILES in keys:
        pasted.append(as_saved(_FILES, files[0] if len(files) == 1 else files or "PATH"))
        remark += "" if files else "; PATH: the same files, under the names they had"
    is_lost = "kind" in keys or (_FILES, _UNNAMED) in [found[:2] for found in differing]
    keeping = ("", "") if is_lost else (" ".join(pasted), remark)
    return ResumeRefused.of(f"resuming {effect}: {shown}{more}", str(path), keeping, anew)


def as_saved(key: str, saved: Any) -> str:
    """Return the option that sets a key to its value in the checkpoint, as a shell takes it."""
    return f"--set {in_shell(f'{key}={inline_yaml(saved)}')}"


def _at(config: dict[str, Any], dotted: str) -> Any:
    value: Any = config
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
