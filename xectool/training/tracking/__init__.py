"""MLflow as a mirror of the run record, kept by a process of its own.

The training loop writes the record and nothing else; `start_tracker` starts ``python -m xectool.training.tracking``,
which tails the record. A database that is locked, slow or gone therefore costs the training nothing, and whatever the
mirror missed is replayed from the record by ``xectool runs sync RUN``.
"""

from xectool.training.tracking.handle import NullTracker, Tracker, TrackerHandle, start_tracker, sync_run
from xectool.training.tracking.params import run_params
from xectool.training.tracking.settings import TrackerSettings, resolve_uri

__all__ = [
    "NullTracker",
    "Tracker",
    "TrackerHandle",
    "TrackerSettings",
    "resolve_uri",
    "run_params",
    "start_tracker",
    "sync_run",
]
