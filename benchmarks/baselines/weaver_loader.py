"""The same events through the loader of weaver-core: ``PYTHON weaver_loader.py FILE BATCH``, with a Python that has it.

Prints events, CPU and wall seconds of two epochs as JSON: the first one compiles, which takes seconds of each process.
Imports and reading the data description are not counted.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from weaver.utils.dataset import SimpleIterDataset

DESCRIPTION = """
treename: tree
new_variables:
  light: np.log1p(npho / 1000.) / 4.08
preprocess: {method: manual}
inputs:
  sensors:
    length: 4760
    vars: [[light, 0, 1, -1, 100], [relative_time, -5.244e-8, 8.772e+6, -100, 100]]
labels:
  type: custom
  value: {energy: energyTruth, u: "uvwTruth[:,0]", v: "uvwTruth[:,1]", w: "uvwTruth[:,2]"}
observers: [run, event]
"""


def main(path: str, batch_size: int) -> None:
    """Read two epochs and print what each took."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        description = Path(folder, "data.yaml")
        description.write_text(DESCRIPTION)
        events = SimpleIterDataset({"_": [path]}, str(description), for_training=True, fetch_step=0.25)
        loader = DataLoader(events, batch_size=batch_size, num_workers=0)
        epochs = []
        for _ in range(2):
            count, cpu_began, began = 0, time.process_time(), time.perf_counter()
            for inputs, _, _ in loader:
                count += len(inputs["sensors"])
            cpu_s, wall_s = time.process_time() - cpu_began, time.perf_counter() - began
            epochs.append({"events": count, "cpu_s": cpu_s, "wall_s": wall_s})
    print(json.dumps(epochs))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
