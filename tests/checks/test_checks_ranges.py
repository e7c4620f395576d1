"""A branch that is damaged in several baskets: all of them are found, and told as ranges of entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from xectool.checks.digest import verify_digest, write_digest
from xectool.checks.facts import Trouble
from xectool.checks.probing import probe
from xectool.checks.ranges import in_ranges

BASKETS, EVENTS = 8, 4
BAD = (1, 2, 3, 6)


def written(path: Path, rows: dict[str, np.ndarray]) -> uproot.TBranch:
    """Write a file of several baskets a branch; return its photons."""
    with uproot.recreate(path, compression=uproot.ZLIB(1)) as file:
        file.mktree("tree", {name: (values.dtype, values.shape[1:]) for name, values in rows.items()})
        for start in range(0, BASKETS * EVENTS, EVENTS):
            file["tree"].extend({name: values[start : start + EVENTS] for name, values in rows.items()})
    return uproot.open(f"{path}:tree")["npho"]


@pytest.mark.parametrize("begin", [40, 200], ids=["header", "content"])
def test_every_damaged_basket_is_found_and_those_that_touch_are_told_as_one(
    begin: int, tmp_path: Path, check: Callable[..., Any]
) -> None:
    rng = np.random.default_rng(5)
    light = rng.uniform(0, 900, (BASKETS * EVENTS, 4760)).astype(np.float32)
    numbers = np.arange(len(light), dtype=np.int64)
    path = tmp_path / "f.root"
    photons = written(path, {"npho": light, "relative_time": light * 1e-11, "run": numbers, "event": numbers})
    raw = bytearray(path.read_bytes())
    for number in BAD:
        seek, size = (int(photons.member(name)[number]) for name in ("fBasketSeek", "fBasketBytes"))
        raw[seek + begin : seek + size] = bytes(size - begin)
    path.write_bytes(raw)
    damage = [item for item in check(path, deep=True).findings if item.code == "DAT-02"]
    assert [item.where.partition(" entries ")[2] for item in damage] == ["[4, 16)", "[24, 28)"]
    assert "entries 4 to 8 cannot be read (" in damage[0].problem
    assert damage[0].problem.endswith("; it goes on up to entry 16 (3 ranges that touch)")


def test_baskets_that_changed_since_their_hashes_are_one_range_with_the_evidence_of_all(
    tmp_path: Path, check: Callable[..., Any]
) -> None:
    light = np.random.default_rng(6).uniform(0, 900, (BASKETS * EVENTS, 4760)).astype(np.float32)
    numbers = np.arange(len(light), dtype=np.int64)
    path = tmp_path / "f.root"
    photons = written(path, {"npho": light, "relative_time": light * 1e-11, "run": numbers, "event": numbers})
    check(path, write_digest=True)
    raw = bytearray(path.read_bytes())
    for number in BAD:
        raw[int(photons.member("fBasketSeek")[number]) + 200] ^= 0x55
    path.write_bytes(raw)
    changed = [item for item in check(path).findings if "since its hashes" in item.problem]
    assert [item.where.partition(" entries ")[2] for item in changed] == ["[4, 16)", "[24, 28)"]
    assert changed[0].problem.endswith("entries 4 to 8; it goes on up to entry 16 (3 ranges that touch)")
    assert [str(item.evidence).count("recorded hash") for item in changed] == [3, 1]


def test_a_change_of_many_branches_in_two_trees_is_told_once_within_bounds(tmp_path: Path) -> None:
    values = np.random.default_rng(6).uniform(0, 900, (60, 8)).astype(np.float32)
    path = tmp_path / "f.root"

    def write(factor: int) -> None:
        with uproot.recreate(path, compression=None) as file:
            for tree in ("tree", "more"):
                file[tree] = {f"b{at}": factor * row for at, row in enumerate(values)}

    write(1)
    for tree in ("tree", "more"):
        write_digest(probe(f"{path}:{tree}"))
    write(2)
    (found,) = verify_digest(str(path))
    assert found.where == str(path)
    assert ", in 120 branches: tree b0, tree b1, " in found.problem
    assert found.problem.endswith(" and 80 more")
    assert (found.evidence[0], found.evidence[16:]) == (
        "tree b0: 1 of 1 baskets or pages, of entries 0 to 8",
        ("and 104 more",),
    )


def trouble(start: int, stop: int, branch: str = "npho", reason: str = "torn") -> Trouble:
    where = f"f.root:tree branch {branch} entries [{start}, {stop})"
    return Trouble("DAT-02", "XT-DATA-DAMAGED", f"entries {start} to {stop} cannot be read ({reason})", where)


def test_what_is_apart_of_another_branch_or_told_twice_stays_so() -> None:
    other = Trouble("DAT-03", "XT-DATA-TREE", "no tree", "f.root:tree")
    twice = trouble(10, 20), trouble(10, 20, reason="of others")
    found = in_ranges([trouble(30, 40), *twice, other, trouble(20, 25, "event")])
    assert found == [trouble(10, 20), trouble(30, 40), other, trouble(20, 25, "event")]


def test_a_long_range_tells_the_first_of_its_evidence() -> None:
    told = [replace(trouble(at, at + 1), evidence=(f"hash {at}",)) for at in range(500)]
    (found,) = in_ranges(told)
    assert (found.evidence[0], found.evidence[15:]) == ("hash 0", ("hash 15", "and 484 more"))
