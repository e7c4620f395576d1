"""``make bench-live``: bring real runs into trouble and look whether the commands say what it is, and how soon."""

from __future__ import annotations

import argparse
import os
import platform
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.live.lab import Lab, ask
from benchmarks.live.score import GROUPS, Answer, Scenario, judged, load_scenarios, table


def main() -> None:
    """Print a table a group; exit with 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live", description=__doc__)
    parser.add_argument("group", nargs="?", choices=[*GROUPS, "all"], default="all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="part of the names of the scenarios to run")
    parser.add_argument("--keep", type=Path, help="directory in which runs are kept")
    parser.add_argument("--kills", type=int, default=50, help="how often a training is killed at a random moment")
    parser.add_argument("--commands", type=int, default=100, help="how many random commands a run is given")
    parser.add_argument("--events", type=int, default=5000, help="events of the largest of the uneven files")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no run is left behind
    scenarios = load_scenarios("" if options.group == "all" else options.group)
    chosen = [found for found in scenarios if options.only in found.name]
    if not chosen:
        parser.error(f"no scenario has '{options.only}' in its name")
    began, load = time.monotonic(), os.getloadavg()[0]
    counts = {"kills": options.kills, "commands": options.commands, "events": options.events}
    with tempfile.TemporaryDirectory() as directory:
        answers = run(chosen, (options.keep or Path(directory)).resolve(), options.seed, counts)
    for group in dict.fromkeys(one.group for one, _ in answers):
        print("\n".join(table(group, answers)))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f} to {os.getloadavg()[0]:.1f}"
    print(f"{time.strftime('%Y-%m-%d')}, {machine}, seed {options.seed}, {time.monotonic() - began:.0f} s")
    sys.exit(not all(answer.right for _, answer in answers))


def run(chosen: list[Scenario], root: Path, seed: int, counts: dict[str, int]) -> list[tuple[Scenario, Answer]]:
    """Return the answers, one scenario after the other; each line as it is known."""
    root.mkdir(parents=True, exist_ok=True)
    for name, events in (("train", 48), ("val", 12)):
        path = root / "data" / f"{name}.root"
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            ask("simulate", path, "--events", events, "--seed", seed + len(name))
    answers = []
    for number, one in enumerate(chosen):
        directory = root / f"{number:02d}-{re.sub('[^a-z0-9]+', '-', one.name.lower())}"
        answer = judged(one, Lab(directory, seed, one.name, **counts))
        answers.append((one, answer))
        mark = "." if answer.right else "WRONG"
        print(f"# {mark} {one.name}: {answer.given} ({answer.seconds:.1f} s)", file=sys.stderr, flush=True)
    return answers


if __name__ == "__main__":
    main()
