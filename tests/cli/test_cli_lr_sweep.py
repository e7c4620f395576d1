"""The sweep and the comparison of two runs as a user types them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from xectool.cli.lr_sweep import _band, _show
from xectool.cli.progress import LineWatcher
from xectool.engine.lr_sweep_outputs import told_alone
from xectool.engine.lr_sweeping import LrSweepResult
from xectool.training.lr_sweep.rows import RateRow

KEYS = {
    "lr", "loss_start", "loss_end", "loss_decreasing",
    "grad_norm_max", "grad_norm_median", "nonfinite_steps", "verdict",
}  # fmt: skip


@pytest.fixture
def config(files: Path, tmp_path: Path) -> Path:
    """A copy of the configuration, with the comment of its owner."""
    path = tmp_path / "mine.yaml"
    path.write_text("# mine\n" + (files / "config.yaml").read_text().replace("gaussian_nll", "smooth_l1"))
    return path


def test_help_names_the_options(xectool: Callable[..., Any]) -> None:
    outcome = xectool("lr-sweep", "--help")
    assert outcome.code == 0
    assert all(option in outcome.out for option in ("--lrs", "--range", "--write", "--ckpt"))


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        (["--lrs", "1e-4,fast"], "--lrs 1e-4,3e-4,1e-3"),
        (["--lrs", "0"], "--lrs 1e-4,3e-4,1e-3"),
        (["--range", "1e-4"], "--range 1e-6:1e-1"),
        (["--range", "1e-4:2e-4"], "--range 1e-6:1e-1"),
        (["--range", "1e-4:1", "--lrs", "1e-4"], "leave out one of the two"),
        (["--seeds", "1"], "--seeds 2"),
        (["--steps", "4"], "--steps 40"),
        (["--range", "1e-5:1e-1", "--steps", "19"], "--steps 100"),
        (["--output", __file__], f"--output {Path(__file__).parent / 'lr_sweep'}"),
    ],
)
def test_a_mistake_in_an_option_is_answered_with_the_line_to_paste(
    xectool: Callable[..., Any], config: Path, options: list[str], fix: str
) -> None:
    outcome = xectool("lr-sweep", config, "--json", *options)
    assert outcome.code == 2
    assert outcome.document["findings"][0]["fix"] == fix


def test_the_fewest_steps_are_told_in_help_and_refusal(xectool: Callable[..., Any], config: Path) -> None:
    """They were found by trying."""
    helped = " ".join(xectool("lr-sweep", "--help").out.replace("│", " ").split())
    for options, fewest in (([], 5), (["--range", "1e-5:1e-1"], 20)):
        (found,) = xectool("lr-sweep", config, *options, "--steps", fewest - 1, "--json").document["findings"]
        assert found["problem"].endswith(f"takes {fewest} or more")
        assert f"at least {fewest}" in helped


def test_a_refusal_is_one_document_with_exit_code_one(xectool: Callable[..., Any], config: Path) -> None:
    before = config.read_bytes()
    outcome = xectool("lr-sweep", config, "--lrs", "1e-12,1e-11", "--steps", "5", "--write", "--json")
    result = outcome.document["result"]
    assert (outcome.code, outcome.document["status"]) == (1, "bad")
    assert (result["recommended_lr"], result["plot"], result["written"]) == (None, None, None)
    assert [row["lr"] for row in result["rows"]] == [1e-12, 1e-11]
    assert all(set(row) >= KEYS for row in result["rows"])
    assert outcome.document["findings"][0]["code"] == "XT-NO-LEARNING"
    assert config.read_bytes() == before


@pytest.mark.slow
@pytest.mark.usefixtures("shallow")
def test_a_recommendation_is_written_into_its_line_and_drawn(
    xectool: Callable[..., Any], config: Path, tmp_path: Path
) -> None:
    options = ["--lrs", "1e-4,1e-3,1e-2", "--steps", "20", "--final-steps", "22", "--write", "--show-reference"]
    before = config.read_text()
    shown = xectool("lr-sweep", config, *options, "--output", tmp_path / "o")
    assert shown.code == 0, shown.err
    result = json.loads((tmp_path / "o" / "lr_sweep.json").read_text())
    changed = [(a, b) for a, b in zip(before.splitlines(), config.read_text().splitlines(), strict=True) if a != b]
    assert [a.replace("1.0e-3", str(result["recommended_lr"])) for a, _ in changed] == [b for _, b in changed]
    assert len(changed) == 1
    assert {path.name for path in (tmp_path / "o").iterdir()} == {"lr_sweep.json", "lr_sweep.pdf", "lr_sweep.png"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.yaml", "o"]
    assert f"training.lr: {result['recommended_lr']:g}" in shown.err
    assert f"Next     xectool train {config}   # training.lr is written into {config}" in shown.err
    assert "432M+" in shown.err
    assert (result["final_steps"], "2 seeds, 22 steps each" in shown.err) == (22, True)
    best = {row["lr"] for row in result["rows"] if row["verdict"] == "optimal"}
    assert {row["lr"] for row in result["final_rows"]} >= best
    assert {len(curve["losses"]) for curve in result["final_curves"]} == {22}


@pytest.mark.slow
@pytest.mark.usefixtures("shallow")
def test_the_next_line_is_a_whole_command_with_what_the_sweep_was_called_with(
    xectool: Callable[..., Any], config: Path
) -> None:
    options = ["--lrs", "1e-4,1e-3,1e-2", "--steps", "20", "--final-steps", "0"]
    settings = ["--set", "training.weight_decay=0.1", "--set", "training.lr=1e-4"]
    shown = xectool("lr-sweep", config, *options, *settings)
    assert shown.code == 0, shown.err
    (line,) = [line.removeprefix("Next").strip() for line in shown.err.splitlines() if line.startswith("Next")]
    train, written = line.split("   # or: ")
    head, lr = train.rsplit("=", 1)
    assert head == f"xectool train {config} --set training.weight_decay=0.1 --set training.lr"
    assert float(lr) > 1e-4
    assert written == f"xectool lr-sweep {config} {' '.join([*settings, *options])} --write"


def test_threads_that_are_no_numbers_are_refused(xectool: Callable[..., Any], config: Path) -> None:
    outcome = xectool("diagnose", "reproducibility", config, "--threads", "many", "--json")
    assert (outcome.code, outcome.document["findings"][0]["fix"]) == (2, "--threads 1,2")


@pytest.mark.slow
@pytest.mark.usefixtures("shallow")
def test_two_runs_of_a_sound_configuration_are_identical(xectool: Callable[..., Any], config: Path) -> None:
    outcome = xectool("diagnose", "reproducibility", config, "--steps", "1", "--json")
    assert outcome.code == 0
    assert (outcome.document["result"]["identical"], outcome.document["result"]["first_difference"]) == (True, None)
    assert outcome.document["result"]["compared"] > 100
    assert outcome.document["findings"] == []


def test_a_rate_that_is_written_says_which_settings_it_was_found_with() -> None:
    """A rate of another network and batch went into a file without a word."""
    settings = ["model.encoder_dim=64", "data.batch_size=8", "data.train_path=a b.root", "training.epochs=2"]
    (found,) = told_alone("my run.yaml", settings)
    assert found.evidence == ("model.encoder_dim=64", "data.batch_size=8")
    assert found.fix.startswith("xectool train 'my run.yaml' --set model.encoder_dim=64 --set data.batch_size=8   # ")
    assert told_alone("my run.yaml", settings[2:]) == told_alone(None, settings) == ()


def test_the_band_is_told_in_words() -> None:
    assert _band(1e-3, 1e-3, 1e-3, 3) == "each of the 3 seeds alone gives 0.001 too"
    assert _band(1e-3, 1e-3, 1e-3, 1) == "one seed: no error of it is known"
    assert (
        _band(3e-4, 1e-3, 1e-3, 3) == "any rate from 0.0003 to 0.001 may be as good: the seeds do not tell them apart"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize("as_json", [True, False])
def test_an_interrupt_in_the_grid_leaves_the_seeds_that_are_done(
    xectool: Callable[..., Any], config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    """All of it was lost, hours of a large network as well."""
    advance, steps = LineWatcher.advanced, list[int]()

    def advance_until_the_second_seed(watcher: LineWatcher, num_batches: int, values: dict[str, float]) -> None:
        advance(watcher, num_batches, values)
        steps.append(num_batches)
        if len(steps) == 13:  # the second seed has taken three
            raise KeyboardInterrupt

    monkeypatch.setattr(LineWatcher, "advanced", advance_until_the_second_seed)
    before = config.read_bytes()
    options = ["--lrs", "1e-4,1e-3", "--steps", "5", "--write", "--output", tmp_path / "o"]
    outcome = xectool("lr-sweep", config, *options, *(["--json"] if as_json else []))
    assert outcome.code == 130
    assert config.read_bytes() == before
    result = json.loads((tmp_path / "o" / "lr_sweep.json").read_text())
    assert (result["seeds"], result["recommended_lr"], result["settings"]) == (1, None, [])
    assert [row["lr"] for row in result["rows"]] == [1e-4, 1e-3]
    again = "--lrs 0.0001,0.001 --steps 5 --final-steps 25 --seeds 2"
    if not as_json:
        assert "2 rates, 1 seed, 5 steps each" in outcome.err
        assert "interrupted in the grid: 1 of 2 seeds done, which alone tell of no rate" in outcome.err
        assert again in outcome.err
        return
    found, *_ = outcome.document["findings"]
    assert (outcome.document["status"], found["code"]) == ("error", "XT-INTERRUPTED")
    assert found["fix"].endswith(again)
    assert outcome.document["result"]["interrupted"] is True
    assert outcome.document["result"]["rows"] == result["rows"]


@pytest.mark.slow
@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize(
    ("at", "seeds", "rows", "said"),
    [
        (24, 1, 6, "1 of 2 seeds done, which alone tells of no rate"),
        (40, 2, 6, "interrupted in the last step of the ramp: 2 of 2 seeds done; nothing was written"),
        (11, 1, 3, "the first seed got to 0.0013, which"),
        (3, 0, 0, ""),
    ],
)
def test_an_interrupt_in_the_ramp_leaves_what_it_has_reached(
    xectool: Callable[..., Any],
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: int,
    seeds: int,
    rows: int,
    said: str,
) -> None:
    """All of it was lost, unlike that of a grid."""
    advance, steps = LineWatcher.advanced, list[int]()

    def advance_until(watcher: LineWatcher, num_batches: int, values: dict[str, float]) -> None:
        advance(watcher, num_batches, values)
        steps.append(num_batches)
        if len(steps) == at:
            raise KeyboardInterrupt

    monkeypatch.setattr(LineWatcher, "advanced", advance_until)
    before = config.read_bytes()
    outcome = xectool("lr-sweep", config, "--range", "1e-5:1e-1", "--steps", "20", "--write", "--json")
    assert (outcome.code, outcome.document["status"], config.read_bytes()) == (130, "error", before)
    (found, *others) = outcome.document["findings"]
    assert found["code"] == "XT-INTERRUPTED"
    assert found["fix"].endswith("--range 1e-05:0.1 --steps 20 --seeds 2" if seeds else "--write --json")
    result = outcome.document["result"] or {"rows": [], "seeds": 0, "recommended_lr": None}
    assert (result["seeds"], len(result["rows"])) == (seeds, rows)
    assert result["recommended_lr"] is None or at == 40, "of all seeds alone"
    told = [other["problem"] for other in others if other["problem"].startswith("interrupted in the ")]
    assert [said in problem for problem in told] == [True] * bool(seeds)


def test_the_rate_to_use_is_told_once() -> None:
    """The first table called one rate optimal, the verdict gave another."""
    numbers = (0.9, 0.5, 0.4, 0.01, True, 2.0, 1.0, 0)
    grid = (RateRow(1e-4, *numbers, "stable"), RateRow(3e-4, *numbers, "optimal"))
    final = (RateRow(3e-4, *numbers, "stable"), RateRow(1e-3, *numbers, "stable"))
    result = LrSweepResult(
        mode="grid",
        rows=grid,
        beyond=(),
        recommended_lr=9.9e-4,
        band=(3e-4, 1e-3),
        rule="the whole rule",
        key="training.lr",
        configured_lr=3e-4,
        steps=10,
        seeds=2,
        start="weights",
        inputs={},
        final_steps=50,
        final_rows=final,
        settings=("training.lr=0.00099",),
    )
    _show(Console(width=200, file=(text := io.StringIO())), result, "")
    shown = text.getvalue()
    assert ("optimal" in shown, shown.count("< use 0.00099"), "use training.lr: 0.00099" in shown) == (False, 1, True)
    assert "the longer run below decides" in shown
    assert "configured now: 0.0003, which may be as good" in shown
    _show(Console(width=200, file=(text := io.StringIO())), replace(result, final_rows=(), final_steps=0), "")
    shown = text.getvalue()
    assert ("optimal" in shown, "below decides" in shown, shown.count("< use 0.00099")) == (True, False, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("shallow")
def test_an_interrupt_in_the_final_leaves_what_the_grid_has_found_and_writes_nothing(
    xectool: Callable[..., Any], config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The final takes longer than the grid, and Ctrl-C in it used to lose both."""
    begin, begun = LineWatcher.phase, list[str]()

    def begin_until_the_final(watcher: LineWatcher, name: str, total: int, done: int = 0) -> None:
        begin(watcher, name, total, done)
        begun.append(name)
        if name == "final":
            raise KeyboardInterrupt

    monkeypatch.setattr(LineWatcher, "phase", begin_until_the_final)
    before = config.read_bytes()
    options = ["--lrs", "1e-4,1e-3,1e-2", "--steps", "20", "--final-steps", "22", "--write", "--json"]
    outcome = xectool("lr-sweep", config, *options, "--output", tmp_path / "o")
    result = outcome.document["result"]
    assert (outcome.code, begun[-1], result["interrupted"]) == (130, "final", True)
    assert 1e-4 <= result["recommended_lr"] <= 1e-2
    assert (result["final_rows"], result["written"]) == ([], None)
    found, *others = outcome.document["findings"]
    assert (outcome.document["status"], found["code"]) == ("error", "XT-INTERRUPTED")
    assert [other for other in others if "interrupted in the final" in other["problem"]]
    assert found["fix"].endswith("--lrs 0.0001,0.001,0.01 --steps 20 --final-steps 22 --seeds 2")
    assert (tmp_path / "o" / "lr_sweep.json").exists()
    assert config.read_bytes() == before
