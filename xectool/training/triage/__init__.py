"""Whether it was the data, one event of them, or the weights: a look at the events of one step.

Used by the guards while a run goes on, and by `xectool.probes` on what a run left behind.
"""

from __future__ import annotations

from xectool.training.triage.bisect import bisect_events
from xectool.training.triage.modules import ModuleFault, first_nonfinite_module
from xectool.training.triage.trial import Trial
from xectool.training.triage.window import Reference, Triage, triage_window

__all__ = [
    "ModuleFault",
    "Reference",
    "Triage",
    "Trial",
    "bisect_events",
    "first_nonfinite_module",
    "triage_window",
]
