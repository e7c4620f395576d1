"""Values for one kind of machine, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Preset:
    """Where a configuration starts from on one kind of machine.

    Attributes:
        title: The machine.
        settings: Value and reason of each key.
    """

    title: str
    settings: Mapping[str, tuple[Any, str]]

    @property
    def values(self) -> dict[str, Any]:
        """Value of each key."""
        return {key: value for key, (value, _) in self.settings.items()}

    def reason(self, key: str) -> str:
        """Return why a key has its value, empty where the preset leaves it alone."""
        return self.settings[key][1] if key in self.settings else ""


PRESETS: Final[Mapping[str, Preset]] = {
    "a100": Preset(
        "a server with NVIDIA A100 cards",
        {
            "preset": ("a100", ""),
            "data.chunksize": (262_144, "host memory is plenty and apart from the GPU's, so events mix widely"),
            "data.num_workers": (4, "feeds one card from local files; diagnose loader measures it here"),
            "data.num_threads": (4, "ROOT blocks inflate side by side, 16 threads in all"),
            "data.batch_size": (1024, "a start for 40 GB; estimate-memory --gpu a100-40gb decides"),
            "training.amp": ("bf16", "its tensor cores have bfloat16, which needs no loss scaling"),
            "training.compile": (
                "max-autotune-no-cudagraphs",
                "tuned kernels; CUDA graphs would not bear accumulation",
            ),
        },
    ),
    "gh200": Preset(
        "NVIDIA Grace-Hopper: ARM cores and a Hopper GPU that share memory",
        {
            "preset": ("gh200", ""),
            "data.chunksize": (65_536, "host and GPU can draw on one memory: a smaller window leaves room"),
            "data.num_workers": (1, "the older advice for its ARM cores; diagnose loader measures it here"),
            "data.num_threads": (8, "threads of one process share a window where processes would each hold one"),
            "data.batch_size": (2048, "a start for 96 GB; estimate-memory --gpu gh200-96gb decides"),
            "data.drop_last": (True, "CUDA graphs want one shape; a shorter last batch would be recorded anew"),
            "training.amp": ("bf16", "its tensor cores have bfloat16, which needs no loss scaling"),
            "training.compile": ("reduce-overhead", "a fast GPU waits for launches; needs triton, which ARM has now"),
        },
    ),
    "cpu": Preset(
        "a machine without a GPU",
        {
            "preset": ("cpu", ""),
            "data.chunksize": (8192, "a laptop's memory"),
            "data.num_workers": (0, "the cores are needed for the network; reading takes a few per cent"),
            "data.num_threads": (2, "reads ahead while a step computes"),
            "data.batch_size": (128, "memory of activations, and enough steps in an epoch"),
            "model.encoder_dim": (128, "the quickstart's size, which learns in minutes on cores"),
            "training.device": ("cpu", "also where a GPU is visible"),
            "training.amp": ("off", "what auto means on cores as well"),
            "training.compile": ("none", "compiled steps were measured slower on cores"),
        },
    ),
    "ci": Preset(
        "automatic tests on two cores",
        {
            "preset": ("ci", ""),
            "data.chunksize": (1024, "a few files of a few events"),
            "data.num_workers": (0, "no processes to start"),
            "data.num_threads": (1, "two cores"),
            "data.batch_size": (64, "several steps from few events"),
            "model.encoder_dim": (32, "seconds a step, not accuracy: a face has one channel"),
            "training.device": ("cpu", "the same everywhere"),
            "training.amp": ("off", "the same numbers everywhere"),
            "training.compile": ("none", "compiling would take longer than the test"),
            "training.epochs": (2, "one that starts and one that goes on"),
            "training.deterministic": (True, "two runs must agree"),
            "checkpoint.save_interval": (1, "a checkpoint to resume from after each epoch"),
            "checkpoint.root_save_interval": (2, "two epochs have no tenth"),
        },
    ),
}
"""Presets by name."""
