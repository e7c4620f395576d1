"""``make bench-damage``: damage good files, ask the commands a user would ask, and count what they find and locate."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.damage.catalogue import GROUPS, load_cases
from benchmarks.damage.lab import GoodFiles, good_files, with_checkpoints, with_predictions
from benchmarks.damage.score import Outcome, judge, misses, table, totals

_KINDS = {kind: {"kind": kind} for kind in ("regressor", "mae", "inpainter")}
TRAINED = {"checkpoints": _KINDS, "exports": _KINDS | {"bf16": {"kind": "regressor", "amp": "bf16"}}}


def main() -> int:
    """Print the table of each group, the totals and every miss; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.damage", description=__doc__)
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}; all without")
    parser.add_argument("--seed", type=int, default=2001, help="decides everything random")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="part of the names of cases")
    parser.add_argument("--events", type=int, default=2000, help="predicted by exported files and their checkpoints")
    parser.add_argument("--keep", type=Path, help="directory in which the files are kept")
    options = parser.parse_args()
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(f"unknown group {', '.join(unknown)}; known: {', '.join(GROUPS)}")
    with tempfile.TemporaryDirectory() as directory:
        root = (options.keep or Path(directory)).resolve()
        good, right = good_files(root, options.seed), True
        if set(options.groups or GROUPS) & TRAINED.keys():
            wanted = [TRAINED[group] for group in options.groups or GROUPS if group in TRAINED]
            good = with_checkpoints(good, {name: kind for kinds in wanted for name, kind in kinds.items()})
        if "exports" in (options.groups or GROUPS):
            good = with_predictions(good, options.seed, options.events)
        for group in options.groups or GROUPS:
            right &= score(group, root, good, options)
    return 0 if right else 1


def score(group: str, root: Path, good: GoodFiles, options: argparse.Namespace) -> bool:
    """Run the cases of a group, several commands at a time, and print how they went."""
    names = [case.name for case in load_cases().values() if case.group == group and options.only in case.name]
    if not names:
        print(f"no case of {group} has '{options.only}' in its name", file=sys.stderr)
        return any(options.only in case.name for case in load_cases().values())
    began = time.perf_counter()

    def run(name: str) -> Outcome:
        outcome = judge(name, options.seed, root, good, options.keep is not None)
        mark = "." if outcome.right else "MISS"
        said = outcome.trouble or outcome.said or ", ".join(outcome.codes)
        print(f"# {mark} {name}: {said}; {outcome.seconds:.0f} s", file=sys.stderr, flush=True)
        return outcome

    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(run, names))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    said = f"{time.strftime('%Y-%m-%d')}, {machine}, seed {options.seed}, {time.perf_counter() - began:.0f} s"
    print("\n".join([*table(group, outcomes), "", *totals(outcomes), said, *misses(outcomes), ""]), flush=True)
    return all(outcome.right for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main())
