"""A recorded step comes again bit for bit, whatever happened in between; what would have cured a bad one is said."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from xectool import engine
from xectool.cli import app
from xectool.cli.boundary import run as run_cli
from xectool.config.load import load_config
from xectool.engine.diagnose.replaying import _Session
from xectool.errors import RunDiverged, UsageError
from xectool.probes.nonfinite.subject import of_batch, of_run
from xectool.probes.repetition.circumstances import differences
from xectool.probes.repetition.counterfactuals import Counterfactual
from xectool.probes.repetition.history import RunHistory
from xectool.probes.repetition.replay import Replay
from xectool.runlog.control import Request
from xectool.runlog.manifest import config_digest
from xectool.runlog.reader import RunReader
from xectool.runlog.records import EventRecord, StepRecord
from xectool.runlog.writer import RunWriter
from xectool.training.control import LiveControl, _Wish
from xectool.training.process.progress import NullObserver
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress
from xectool.training.stepping.step import Stepper, StepResult

Write = Callable[..., Path]
pytestmark = pytest.mark.usefixtures("shallow_module")


@pytest.fixture(scope="module")
def trained(train_tiny: Callable[..., tuple[Path, Path]], shallow_module: None) -> tuple[Path, Path]:
    """A shallow network's configuration and last checkpoint; at this rate the second epoch is the best."""
    return train_tiny(lr=4e-3)


@pytest.mark.parametrize("step", [1, 3, 4, 5, 8])
def test_step_comes_again_bit_for_bit(trained: tuple[Path, Path], step: int) -> None:
    run = trained[1].parent
    record = next(r for r in RunReader(run).steps() if r.step == step)
    result = engine.diagnose.replay(run, step)
    assert result.reproduced
    assert (result.loss, result.grad_norm) == (record.loss, record.grad_norm)
    assert result.differences == ()
    assert result.healthy
    assert result.replayed_steps == (step - 1 if step <= 8 else 0)
    names = [own.module for own in result.modules]
    assert "heads.energy.6" in names
    assert len(names) == len(set(names))
    assert all(own.nonfinite == 0 and math.isfinite(own.std) for own in result.modules)


def test_numbers_of_modules_are_those_of_the_step(trained: tuple[Path, Path]) -> None:
    run = trained[1].parent
    result = engine.diagnose.replay(run, 2)
    assert [m.module for m in result.modules if m.grad_norm is not None and math.isnan(m.grad_norm)] == []
    assert {m.kind for m in result.modules if m.grad_norm is None} >= {"GELU", "Dropout"}
    by_parameters = math.sqrt(sum(m.grad_norm**2 for m in result.modules if m.grad_norm is not None))
    assert by_parameters <= result.grad_norm * (1 + 1e-5)
    assert by_parameters > 0.5 * result.grad_norm  # the rest belongs to parameters of modules that are never called


@pytest.mark.parametrize("kind", ["mae", pytest.param("inpainter", marks=pytest.mark.slow)])
def test_other_kinds_with_accumulation_come_again(write_config: Write, kind: str) -> None:
    config = write_config(kind, training={"grad_accum_steps": 3}, data={"num_shards": 2, "chunksize": 8})
    run = Path(engine.train(config).run_dir)
    assert engine.diagnose.replay(run, 3).reproduced  # two windows an epoch, the second one short


def test_run_from_a_resumed_checkpoint_comes_again(write_config: Write) -> None:
    config = write_config(checkpoint={"save_interval": 1}, training={"epochs": 1, "lr": 1e-3})
    run = Path(engine.train(config).run_dir)
    engine.train(config, overrides=["training.epochs=2", "training.grad_clip=0.01"], resume="auto")
    (run / "checkpoint_best.pt").unlink()  # of the first epoch or the second, as it comes
    result = engine.diagnose.replay(run, 6)
    assert result.reproduced
    assert result.state.endswith("checkpoint_epoch_1.pt")
    assert result.replayed_steps == 1
    assert engine.diagnose.replay(run, 3).reproduced  # with the limit of the first attempt
    (run / "checkpoint_epoch_1.pt").unlink()
    lost = engine.diagnose.replay(run, 3)
    assert not lost.reproduced
    assert any("configuration" in line for line in lost.differences)
    after = engine.diagnose.replay(run, 6)
    assert "the resume at step 4 used a state that is no longer on disk" in after.why
    assert after.next == "xectool explain XT-REPLAY-DIFFERS"


def test_what_differs_is_said_when_a_step_does_not_come_again(write_config: Write) -> None:
    run = Path(engine.train(write_config()).run_dir)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("seed: 42", "seed: 43"))
    result = engine.diagnose.replay(run, 2)
    assert not result.reproduced
    assert any("configuration" in line for line in result.differences)
    assert result.loss != result.recorded_loss


def test_step_that_was_not_recorded_is_a_usage_mistake(trained: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no record of step 900"):
        engine.diagnose.replay(trained[1].parent, 900)
    with pytest.raises(UsageError, match="no run record"):
        engine.diagnose.replay(tmp_path, 1)


def test_steps_after_an_event_was_left_out_come_again(overflowing: tuple[Path, int], tmp_path: Path) -> None:
    config = overflowing[0] / "config.yaml"
    settings = ["guards.quarantine=true", f"checkpoint.save_dir={tmp_path}", "mlflow.run_name=q"]
    run = Path(engine.train(config, overrides=settings).run_dir)
    records = list(RunReader(run).steps())
    assert sum(record.num_events for record in records) == 14  # 8 events twice, without the bad one
    for record in (records[0], records[-1]):
        assert engine.diagnose.replay(run, record.step).reproduced
    result = engine.diagnose.nan_batch(run=run, output=tmp_path / "m.npz")
    assert result.event["entry"] == 5
    assert result.sensors == (321,)


@pytest.fixture(scope="module")
def quarantining(overflowing: tuple[Path, int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with the quarantine, which leaves the event out; it keeps no checkpoint."""
    place = tmp_path_factory.mktemp("quarantining")
    settings = ["guards.quarantine=true", f"checkpoint.save_dir={place}", "mlflow.run_name=q"]
    run = Path(engine.train(overflowing[0] / "config.yaml", overrides=settings).run_dir)
    for checkpoint in run.glob("*.pt"):
        checkpoint.unlink()
    return run


def test_a_step_that_lost_an_event_is_healthy_without_it_and_leads_to_the_step_with_it(
    quarantining: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = list(RunReader(quarantining).steps())
    short = [record.step for record in records if record.num_events == 3]
    assert len(short) == 2  # one an epoch
    for record in records:
        result = engine.diagnose.replay(quarantining, record.step)
        assert (result.good, result.healthy, result.with_left_out) == (True, True, False)
        assert [event["entry"] for event in result.left_out] == [5] * (record.step in short)
        assert ("healthy without" in result.verdict) == (record.step in short) == ("entry 5" in result.verdict)
        assert ("--with-left-out" in result.next) == (record.step in short)
    again = engine.diagnose.replay(quarantining, short[0])
    assert any(f"left out of it: {again.left_out[0]['file']} entry 5" in line for line in again.why)
    assert run_cli(app.app, [*shlex.split(again.next)[1:], "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)["result"]
    assert not answer["finite"]
    assert answer["with_left_out"]
    assert "served again" in answer["verdict"]
    assert [suspect["entry"] for suspect in answer["suspects"]] == [5]
    assert answer["differences"] == []


def test_only_the_asked_step_is_served_what_was_left_out(quarantining: Path) -> None:
    """The event would turn the weights of every step after the first one that has it into no numbers."""
    records = list(RunReader(quarantining).steps())
    short, later = (record for record in records if record.num_events == 3)
    assert short.step < later.step
    result = engine.diagnose.replay(quarantining, later.step, with_counterfactuals=True, with_left_out=True)
    assert not result.finite
    without = next(item for item in result.counterfactuals if item.change == "without suspects")
    assert without.loss == pytest.approx(later.loss, rel=1e-6)
    slower = next(item for item in result.counterfactuals if item.change == "lr / 10")
    assert not slower.healthy  # the step itself still holds the event
    whole = next(record for record in records if record.num_events == 4)
    none = engine.diagnose.replay(quarantining, whole.step, with_left_out=True)
    assert none.good
    assert not none.with_left_out
    assert "the run left no event out of this step: --with-left-out changes nothing" in none.why


class Clipping(NullObserver):
    """Asks, as the live control does, for a smaller limit of the gradient norm after two steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
        self._after, take = after, LiveControl.begin
        self._control: LiveControl | None = None

        def begin(control: LiveControl, progress: Progress) -> None:
            take(control, progress)
            self._control = control

        monkeypatch.setattr(LiveControl, "begin", begin)

    def advanced(self, num_batches: int, values: Mapping[str, float]) -> None:
        self._after -= num_batches
        if num_batches and self._after == 0:
            assert self._control is not None
            self._control._wishes.append(_Wish(Request("clip", 0.01), 0))


def test_limit_asked_for_live_holds_from_its_step_on(write_config: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_config(training={"epochs": 1, "lr": 1e-3})
    run = Path(engine.train(config, observer=Clipping(monkeypatch, after=2)).run_dir)
    engine.train(config, overrides=["training.epochs=2"], resume="auto")
    last = {record.step: record for record in RunReader(run).steps()}
    assert last[4].clip_coef < 0.1 * last[1].clip_coef  # it acts, after the resume too
    assert last[8].clip_coef < 0.1 * last[1].clip_coef
    assert [engine.diagnose.replay(run, step).reproduced for step in (2, 4, 8)] == [True, True, True]
    monkeypatch.setattr(RunHistory, "clip_after", lambda history, step, otherwise: 1.0)
    assert not engine.diagnose.replay(run, 4).reproduced


@pytest.mark.parametrize(
    ("later", "limit"),
    [
        ([], 0.5),
        ([("checkpoint", 3), ("run_start", 3)], 0.5),
        ([("run_start", 3)], 2.0),  # that checkpoint was written before it was asked for
        ([("checkpoint", 3), ("run_start", 2)], 2.0),
        ([("run_start", 4)], 0.5),
    ],
)
def test_limit_counts_only_where_later_starts_took_it_over(
    trained: tuple[Path, Path], later: list[tuple[str, int]], limit: float
) -> None:
    history = RunHistory(trained[1].parent)
    asked = EventRecord("control", 1.0, 1.0, 3, 1, "", {"action": "clip", "value": 0.5, "done": True})
    history.events = [asked, *(EventRecord(kind, 2.0, 2.0, step) for kind, step in later)]
    assert history.clip_after(2, 2.0) == 2.0
    assert history.clip_after(3, 2.0) == limit


def test_rewind_is_repeated(write_config: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    guards = {"on_spike": "rewind", "spike_after": 10, "spike_window": 10, "ring_steps": 3, "quarantine": False}
    config = write_config(training={"epochs": 5, "lr": 1e-4}, guards=guards, checkpoint={"save_interval": 1})
    calls, honest = [0], Stepper.run

    def run_away(stepper: Stepper, *arguments: object) -> object:
        calls[0] += 1
        if calls[0] == 14:
            with torch.no_grad():
                stepper.model.heads["energy"][6].weight.mul_(1e4)
        return honest(stepper, *arguments)

    monkeypatch.setattr(Stepper, "run", run_away)
    run = Path(engine.train(config).run_dir)
    monkeypatch.setattr(Stepper, "run", honest)
    (rewind,) = [event for event in RunReader(run).events() if event.kind == "rewind"]
    assert rewind.data["from_step"] == 14
    result = engine.diagnose.replay(run, 16)
    assert result.replayed_steps > 16 - 14  # the state before the rewind, and what followed on it
    assert result.reproduced

    engine.train(config, run_name="r", resume=str(run / "checkpoint_epoch_2.pt"))  # which gives that rewind up
    (run / "checkpoint_epoch_4.pt").unlink()
    (run / "checkpoint_epoch_3.pt").unlink()
    assert engine.diagnose.replay(run, 16).reproduced
    monkeypatch.setattr(RunHistory, "events", property(lambda history: history.reader.events()))
    assert not engine.diagnose.replay(run, 16).reproduced


@pytest.mark.parametrize(("resumed_after", "since"), [(6, 7), (9, 9)])
def test_events_left_out_by_an_attempt_that_was_given_up_are_left_out_from_the_next_on(
    tmp_path: Path, resumed_after: int, since: int
) -> None:
    with RunWriter(tmp_path) as writer:
        writer.event("run_start")
        writer.event("quarantine", step=9, columns=["file_index", "entry", "run", "event"], events=[[1, 5, 3, 15]])
    with RunWriter(tmp_path) as writer:
        writer.resume(resumed_after, 1)
    left_out = {"file": "b.root", "file_index": 0, "entry": 5, "run": 3, "event": 15, "reason": "", "step": 9}
    (tmp_path / "quarantine.json").write_text(json.dumps({"format": 1, "events": [left_out]}))
    assert RunHistory(tmp_path).left_out() == [left_out | {"step": since}]
    for damaged in ("{", "[]", '{"events": [{"file": 3}, 7]}', '{"events": 5}'):
        (tmp_path / "quarantine.json").write_text(damaged)
        assert RunHistory(tmp_path).left_out() == []
    (tmp_path / "quarantine.json").write_text("{")
    assert RunHistory(tmp_path).not_listed == "quarantine.json cannot be read: it is no JSON"


def test_a_step_is_repeated_with_as_many_ranks_as_its_attempt_had(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        writer.event("run_start", world_size=4)
        writer.step(StepRecord(1, 1, 0.0, 0.0, 1.0))
    with RunWriter(tmp_path) as writer:
        writer.resume(1, 1)
        writer.event("run_start", world_size=2)
        writer.step(StepRecord(1, 2, 0.0, 0.0, 1.0))
    with RunWriter(tmp_path) as writer:
        writer.event("failed")  # before it said how many ranks it has
    (tmp_path / "config.yaml").write_text(
        "data: {train_path: a.root, val_path: b.root, batch_size: 6}\ntasks: {energy: {enabled: true}}\n"
    )
    history = RunHistory(tmp_path)
    assert [history.config_at(step).data.batch_size for step in (1, 2)] == [24, 12]
    assert history.config.data.batch_size == 12
    assert [history.ranks_at(step) for step in (1, 2)] == [4, 2]
    digest = config_digest(load_config(tmp_path / "config.yaml").config.to_dict())
    entry = {"versions": {}, "extra": {}, "machine": {}, "config_sha256": digest}
    execution = SimpleNamespace(notes=())
    said = differences(entry, cast(RunParts, SimpleNamespace(config=history.config_at(1), execution=execution)), 4)
    assert "ranks: 4 then, 1 now" in said
    assert not any("configuration" in line for line in said)


def test_bad_step_comes_again_and_its_cures_are_named(overflowing: tuple[Path, int]) -> None:
    run, step = overflowing
    result = engine.diagnose.replay(run, step, with_counterfactuals=True)
    assert result.reproduced
    assert not result.finite
    assert result.first_nonfinite is not None
    assert [suspect["entry"] for suspect in result.suspects] == [5]
    cures = {item.change: item.cures for item in result.counterfactuals}
    assert cures["without suspects"]
    assert cures["float64"]
    assert not cures.get("lr / 10", False)
    assert set(result.cures) == {"without suspects", "float64"}
    assert any(line.startswith("bad by itself: ") and " entry 5 " in line for line in result.why)


@pytest.mark.parametrize(
    ("cures", "setting"),
    [
        (("amp off", "float64", "lr / 10"), "training.amp=off"),
        (("lr / 10",), "training.grad_clip=0.5"),
        ((), "guards.on_spike=rewind"),
    ],
)
def test_spike_is_cured_by_the_change_that_cured_it(
    trained: tuple[Path, Path], tmp_path: Path, cures: tuple[str, ...], setting: str
) -> None:
    history = RunHistory(trained[1].parent)
    tried = [
        Counterfactual(name, 1.0, 1.0, name in cures, name in cures, "") for name in ("lr / 10", "float64", "amp off")
    ]
    spike = StepResult(True, 9.0, torch.zeros(1), torch.ones(1), 1.0, 1.0, 4)
    line = _Session(history, cast(Replay, None), history.require_step(4))._cure(spike, (), tried)
    assert setting in line
    _, *words = shlex.split(line, comments=True)
    assert run_cli(app.app, [*words, "--set", f"checkpoint.save_dir={tmp_path}", "--dry-run"]) == 0


def test_line_to_go_on_with_names_a_run_whose_name_holds_blanks(overflowing: tuple[Path, int], tmp_path: Path) -> None:
    run = Path(shutil.copytree(overflowing[0], tmp_path / "some one's run"))
    result = engine.diagnose.replay(run, overflowing[1])
    assert shlex.split(result.next) == ["xectool", "diagnose", "nan-batch", "--run", str(run)]
    assert result.findings[0].where == str(run)


def test_cure_of_a_run_can_be_pasted(overflowing: tuple[Path, int], tmp_path: Path) -> None:
    run = Path(shutil.copytree(overflowing[0], tmp_path / "some one's" / "r"))
    result = engine.diagnose.nan_batch(run=run, output=tmp_path / "m.npz")
    _, *words = shlex.split(result.next, comments=True)
    assert run_cli(app.app, [*words, "--set", f"checkpoint.save_dir={tmp_path}", "--max-steps", "2"]) == 0
    assert not any(record.nonfinite for record in RunReader(tmp_path / "r-log1p").steps())
    alone = engine.diagnose.nan_batch(batch=result.minimal)
    assert shlex.split(alone.next, comments=True) == ["--set", "normalization.npho_scheme=log1p"]


def test_incident_of_a_run_is_searched_with_the_weights_it_had(overflowing: tuple[Path, int], tmp_path: Path) -> None:
    run, step = overflowing
    result = engine.diagnose.nan_batch(run=run, output=tmp_path / "m.npz")
    assert result.found
    assert result.event["entry"] == 5
    assert result.sensors == (321,)
    assert any(f"before step {step}" in line for line in result.scanned)
    assert engine.diagnose.nan_batch(batch=result.minimal).sensors == (321,)


def test_batch_of_a_run_brings_the_weights_it_failed_with(
    trained: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: Counter[int] = Counter()
    honest = Stepper.run

    def run_away(stepper: Stepper, *arguments: object) -> object:
        result = honest(stepper, *arguments)
        taken[id(stepper)] += 1
        if taken[id(stepper)] == 2:
            for layer in (4, 6):
                stepper.model.heads["energy"][layer].weight.data.fill_(3e37)
        return result

    monkeypatch.setattr(Stepper, "run", run_away)
    settings = [f"checkpoint.save_dir={tmp_path}", "mlflow.run_name=far", "guards.on_nonfinite=stop"]
    with pytest.raises(RunDiverged):
        engine.train(trained[0], overrides=settings)
    run = tmp_path / "far"
    step = RunHistory(run).first_nonfinite()
    assert step is not None
    found = engine.diagnose.nan_batch(run=run, output=tmp_path / "m.npz")
    assert found.found
    again = engine.diagnose.nan_batch(batch=found.minimal)
    assert (again.cause, again.first_nonfinite) == (found.cause, found.first_nonfinite)
    assert any(f"before step {step.step}: {step.step - 1} steps run again" in line for line in again.why)
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in tmp_path.glob("m.*"):
        shutil.move(path, moved)
    assert engine.diagnose.nan_batch(batch=moved / "m.npz").found
    kept = of_batch(run / "incidents" / "0001" / "batch.npz", None, None, "cpu")
    (note,) = kept.notes
    assert f"fresh weights of seed 42, not those of step {step.step}: {step.step - 1} steps lie between" in note
    monkeypatch.setattr("xectool.probes.nonfinite.subject._weights_of", lambda *_: None)  # without: those of the seed
    assert not engine.diagnose.nan_batch(batch=moved / "m.npz").found


@pytest.mark.parametrize(("suspects", "chosen"), [([[0, 5, 0, 5]], 1), ([], 0)])
def test_of_the_folders_of_a_step_that_of_the_rank_with_the_fault_is_searched(
    overflowing: tuple[Path, int], tmp_path: Path, suspects: list[list[int]], chosen: int
) -> None:
    run = Path(shutil.copytree(overflowing[0], tmp_path / "r"))
    (first, facts), *_ = RunHistory(run).incidents()
    other = shutil.copytree(first, first.with_name("9998"))
    (first / "incident.json").write_text(json.dumps(facts | {"rank": 0, "suspects": []}))
    (other / "incident.json").write_text(json.dumps(facts | {"rank": 1, "suspects": suspects}))
    found = of_run(RunHistory(run), None, None, "cpu")
    assert found is not None
    found.close()
    assert found.bench.rank == chosen  # whose stream of random numbers is used
    sound = of_run(RunHistory(run), int(first.name), None, "cpu")
    assert sound is not None
    sound.close()
    assert sound.bench.rank == 0


def test_command_line_of_replay(
    trained: tuple[Path, Path], overflowing: tuple[Path, int], capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(trained[1].parent)
    assert run_cli(app.app, ["diagnose", "replay", run, "--step", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == "diagnose replay"
    assert {"step", "reproduced", "loss", "recorded_loss", "modules"} <= document["result"].keys()
    bad, step = overflowing
    assert run_cli(app.app, ["diagnose", "replay", str(bad), "--step", str(step)]) == 1
    shown = capsys.readouterr().err
    assert "Verdict" in shown
    assert "nan-batch --run" in shown


def test_replay_leaves_the_threads_of_the_process_alone(trained: tuple[Path, Path]) -> None:
    before = torch.get_num_threads()
    engine.diagnose.replay(trained[1].parent, 1)
    assert torch.get_num_threads() == before
