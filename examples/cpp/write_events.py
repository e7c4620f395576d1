"""Write events of ROOT files in the binary format that ``predict_events`` reads."""

from __future__ import annotations

import argparse
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import uproot

MAGIC = b"XECEVT01"
SENSORS = 4760
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, AssertionError, NotImplementedError,
              struct.error, zlib.error, uproot.DeserializationError)  # fmt: skip
"""What uproot raises of a file that is damaged, or none of ROOT."""


def main() -> None:
    """Write the readings as they stand in the file, nothing converted; the output is whole or absent."""
    given = arguments()
    tree = opened(given.data)
    part = given.output.with_name(f"{given.output.name}.part")
    try:
        with part.open("wb") as out:
            stop = tree.num_entries if given.max_events is None else min(given.max_events, tree.num_entries)
            out.write(MAGIC + np.array([stop, SENSORS], "<u4").tobytes())
            for events in pieces(tree, (given.npho, given.time), stop):
                out.write(events.tobytes())
        part.replace(given.output)
    except OSError as error:
        refuse(f"cannot write {given.output}: {error.strerror or error}")
    finally:
        part.unlink(missing_ok=True)
    sys.stderr.write(f"{stop} events in {given.output}\n")


def arguments() -> argparse.Namespace:
    """Return what was given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="ROOT file, or file.root:tree")
    parser.add_argument("output", type=Path)
    parser.add_argument("--npho", default="npho", help="branch with the photons")
    parser.add_argument("--time", default="relative_time", help="branch with the times in seconds")
    parser.add_argument("--max-events", type=int, default=None)
    given = parser.parse_args()
    if given.max_events is not None and given.max_events < 1:
        refuse(f"--max-events {given.max_events} leaves nothing to write")
    return given


def opened(data: str) -> Any:
    """Return the tree that ``file.root`` or ``file.root:tree`` names."""
    file, separator, name = data.rpartition(":")
    if not separator or not name.isidentifier():
        file, name = data, "tree"
    if not Path(file).is_file():
        refuse(f"no such file: {file}")
    try:
        root = uproot.open(file)
        trees = [key.partition(";")[0] for key, kind in root.classnames().items() if kind in ("TTree", "ROOT::RNTuple")]
        if name in trees:
            return root[name]
    except UNREADABLE as error:
        refuse(f"{file} cannot be read as a ROOT file: {reason(error)}")
    refuse(f"{file} has no tree {name}; its trees: {', '.join(dict.fromkeys(trees)) or 'none'}")


def pieces(tree: Any, branches: tuple[str, str], stop: int) -> Iterator[Any]:
    """Yield both branches event by event, float32 (B, 2, 4760), at most 1000 events at once."""
    lacking, known = [name for name in branches if name not in tree], list(tree.keys())
    if lacking:
        refuse(f"the tree has no branch {', '.join(lacking)}; its branches: {', '.join(known)}")
    try:
        for values in tree.iterate(list(branches), entry_stop=stop, step_size=1000, library="np"):
            for name in branches:
                if values[name].dtype.kind not in "fiu" or values[name].shape[1:] != (SENSORS,):
                    refuse(f"branch {name} does not hold {SENSORS} numbers an event")
            yield np.stack([values[name] for name in branches], axis=1).astype("<f4")
    except UNREADABLE as error:
        refuse(f"the tree cannot be read: {reason(error)}")


def reason(error: BaseException) -> str:
    """Return the first line of what a library says."""
    return f"{type(error).__name__} {str(error).strip().partition(chr(10))[0]}"


def refuse(problem: str) -> Any:
    """Say what is wrong and end with exit code 2."""
    sys.stderr.write(f"{problem}\n")
    raise SystemExit(2)


if __name__ == "__main__":
    main()
