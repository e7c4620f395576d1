"""What a training by a configuration makes of the files that are checked: memory, disk, and who reads what."""

from __future__ import annotations

import shutil
from pathlib import Path

from xectool.checks.data_facts import DataFacts
from xectool.checks.sample import Sample
from xectool.checks.sharing import Sharing, plan_sharing
from xectool.config.platform import Platform, available_memory
from xectool.config.root import RegressorConfig, RunConfig
from xectool.config.rules.capacity import is_on_cpu
from xectool.config.rules.count import prediction_bytes
from xectool.errors import XecError


def look_at_use(facts: DataFacts, config: RunConfig) -> None:
    """Add to the facts what a training by a configuration needs, who reads what, and what it is refused with.

    Args:
        facts: Facts of the samples.
        config: The configuration.
    """
    facts.memory_bytes = available_memory(config.distributed.num_gpus)
    facts.is_on_gpu = not is_on_cpu(config, Platform.detect())
    facts.sharing, facts.refusal = _sharing(facts.sample, config)
    facts.disk_needed_bytes = {
        "checkpoints": float(_checkpoints_bytes(config)),
        "predictions": (facts.other.num_events if facts.other else 0) * prediction_bytes(config),
    }
    place = Path(config.checkpoint.save_dir).expanduser().absolute()
    facts.free_disk_bytes = shutil.disk_usage(next(path for path in (place, *place.parents) if path.exists())).free


def _checkpoints_bytes(config: RunConfig) -> int:
    # torch, which a check without a configuration does without
    from xectool.training.memory_estimate.host import checkpoint_bytes_of, kept_checkpoints
    from xectool.training.memory_estimate.network import EmptyNetwork

    return kept_checkpoints(config) * checkpoint_bytes_of(EmptyNetwork.build(config).model, config)


def _sharing(sample: Sample, config: RunConfig) -> tuple[Sharing | None, XecError | None]:
    from xectool.config.left_out import entries_left_out, refuse_beyond
    from xectool.data.plan import DataPlan
    from xectool.data.source import open_source

    tasks = tuple(config.tasks.enabled()) if isinstance(config, RegressorConfig) else ()
    try:
        # as training opens them: with the fiducial cut, and without what is left out
        files = tuple(facts.where for facts in sample.files)
        gone: set[tuple[int, int]] = set()
        for index, facts in enumerate(sample.files):
            entries = entries_left_out(config.data, facts.where)
            refuse_beyond(config.data, facts.where, entries, facts.num_entries)
            gone |= {(index, entry) for entry in entries}
        source = open_source(
            config.data.model_copy(update={"train_path": files, "exclude": ()}),
            "train",
            tasks,
            exclude=gone,
        )
        plan = DataPlan(
            source.files,
            batch_size=config.data.batch_size,
            seed=config.training.seed,
            shuffle=config.data.shuffle,
            num_shards=config.data.num_shards,
            chunksize=config.data.chunksize,
            world_size=config.distributed.num_gpus,
            drop_last=config.data.drop_last,
        )
    except XecError as error:
        return None, error
    return plan_sharing(source.files, plan, config.data.num_workers), None
