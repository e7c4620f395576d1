"""Write events of ROOT files in the binary format that ``predict_events`` reads."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import uproot

MAGIC = b"XECEVT01"


def main() -> None:
    """Write the readings as they stand in the file, nothing converted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="ROOT file, or file.root:tree")
    parser.add_argument("output", type=Path)
    parser.add_argument("--npho", default="npho", help="branch with the photons")
    parser.add_argument("--time", default="relative_time", help="branch with the times in seconds")
    parser.add_argument("--max-events", type=int, default=None)
    given = parser.parse_args()
    name = given.data if given.data.rpartition(":")[2].isidentifier() and ":" in given.data else f"{given.data}:tree"
    with uproot.open(name) as tree, given.output.open("wb") as out:
        stop = tree.num_entries if given.max_events is None else min(given.max_events, tree.num_entries)
        out.write(MAGIC + np.array([stop, 4760], "<u4").tobytes())
        for part in tree.iterate([given.npho, given.time], entry_stop=stop, step_size=1000, library="np"):
            both = np.stack([part[given.npho], part[given.time]], axis=1).astype("<f4")
            out.write(both.tobytes())
    sys.stderr.write(f"{stop} events in {given.output}\n")


if __name__ == "__main__":
    main()
