import json
import shlex
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import uproot
import yaml
from xectool.cli import boundary
from xectool.cli.app import app
from xectool.config.load import load_config
from xectool.engine.at_hand import renamed
from xectool.errors import MisnamedRun
from xectool.rootio.weights_state import KEY, WeightsState
from xectool.runlog.records import EpochRecord, StepRecord
from xectool.runlog.run_dirs import require_record
from xectool.runlog.writer import RunWriter


@pytest.fixture
def root(tmp_path) -> Path:
    for name, lr in (("one", 1e-3), ("two", 1e-4)):
        with RunWriter(tmp_path / name) as writer:
            (tmp_path / name / "config.yaml").write_text(f"kind: regressor\ntraining: {{lr: {lr}}}\n")
            writer.epoch(EpochRecord(1, 5, time.time(), time.monotonic(), {"val/loss": 0.5}))
            writer.event("finished")
    return tmp_path


def test_help_names_the_commands(capsys):
    assert boundary.run(app, ["runs", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("compare", "sync", "--root"))


def test_table_of_runs_goes_to_stderr(root, capsys):
    assert boundary.run(app, ["runs", "--root", str(root)]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert all(word in shown.err for word in ("one", "two", "finished", "0.5"))


def test_a_directory_that_is_closed_to_others_is_passed_over(root, tmp_path, monkeypatch, capsys):
    """The look for other runs met one below a home directory, and `xectool runs` told of a defect of its own."""
    monkeypatch.chdir(tmp_path)
    (root / "closed").mkdir()
    is_dir = Path.is_dir

    def refused(path):
        if "closed" in path.parts[:-1]:  # whoever runs the tests may read everything
            raise PermissionError(13, "Permission denied", str(path))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", refused)
    assert boundary.run(app, ["runs"]) == 2
    assert "xectool runs --root" in capsys.readouterr().err


def test_runs_in_other_directories_are_led_to(root, tmp_path, monkeypatch, capsys):
    """`xectool runs` did not find those of a configuration with `checkpoint.save_dir: work/runs`."""
    monkeypatch.chdir(tmp_path)
    (root / "work" / "my runs").mkdir(parents=True)
    for name in ("one", "two"):
        shutil.move(root / name, root / "work" / "my runs" / name)
    assert boundary.run(app, ["runs"]) == 2
    line = "xectool runs --root 'work/my runs'"
    assert line in capsys.readouterr().err
    with RunWriter(tmp_path / "artifacts" / "group" / "three"):
        pass
    assert boundary.run(app, ["runs"]) == 0
    shown = capsys.readouterr().err
    assert "1 run in artifacts" in shown
    assert shown.count("--root") == 1
    assert f"runs elsewhere: {line}\n" in shown
    assert boundary.run(app, shlex.split(line)[1:]) == 0
    shown = capsys.readouterr().err
    assert "2 runs in" in shown
    assert "elsewhere" not in shown
    shutil.rmtree(tmp_path / "artifacts" / "group")
    shutil.rmtree(tmp_path / "work")
    assert boundary.run(app, ["runs"]) == 0
    assert "runs elsewhere: xectool runs --root DIR   # checkpoint.save_dir" in capsys.readouterr().err


def test_table_of_runs_is_one_json_document(root, capsys):
    assert boundary.run(app, ["runs", "--root", str(root), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["command"], document["status"]) == ("runs", "ok")
    assert [run["name"] for run in document["result"]["runs"]] == ["one", "two"]


def test_comparison_shows_the_differing_key(root, capsys):
    assert boundary.run(app, ["runs", "compare", str(root / "one"), str(root / "two"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert [item["key"] for item in result["config"]] == ["training.lr"]
    (note,) = result["notes"]
    assert note.startswith("no metric has an error: no predictions.root of ")
    assert boundary.run(app, ["runs", "compare", str(root / "one"), str(root / "two")]) == 0
    out = capsys.readouterr().err
    assert "training.lr" in out
    assert "no metric has an error: no predictions.root of " in " ".join(out.split())


def test_keys_that_one_kind_alone_has_are_counted_and_not_listed_beside_those_that_differ(root, capsys):
    for name, kind in (("one", "regressor"), ("two", "mae")):
        values = load_config(Path("examples") / f"{kind}.yaml").config.model_dump(mode="json")
        (root / name / "config.yaml").write_text(yaml.safe_dump(values))
    places = [str(root / "one"), str(root / "two")]
    assert boundary.run(app, ["runs", "compare", *places, "--json"]) == 0
    by_key = {item["key"]: item for item in json.loads(capsys.readouterr().out)["result"]["config"]}
    assert by_key["tasks.energy.loss_fn"]["absent"] == [False, True]
    assert by_key["kind"]["absent"] == [False, False]
    assert boundary.run(app, ["runs", "compare", *places]) == 0
    out = " ".join(capsys.readouterr().err.split())
    assert "regressor mae" in out
    assert "tasks.energy.loss_fn" not in out
    tasks = sum(key.startswith("tasks.") for key in by_key)
    assert f"keys of one alone: tasks ({tasks}), reweighting (" in out
    assert "keys of two alone: " in out


def test_a_run_that_lost_its_configuration_is_compared_by_its_metrics(root, capsys):
    (root / "two" / "config.yaml").unlink()
    places = [str(root / "one"), str(root / "two")]
    assert boundary.run(app, ["runs", "compare", *places, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert (result["config"], result["without_config"]) == ([], places[1:])
    assert [item["values"] for item in result["metrics"] if item["key"] == "val/loss"] == [[0.5, 0.5]]
    assert boundary.run(app, ["runs", "compare", *places]) == 0
    assert "no keys compared: no configuration of two" in capsys.readouterr().err
    (root / "deep").mkdir()
    (root / "two").rename(root / "deep" / "one")
    assert boundary.run(app, ["runs", "compare", places[0], str(root / "deep" / "one")]) == 0
    assert f"no configuration of {root / 'deep' / 'one'}" in capsys.readouterr().err, "two runs are called one"
    assert boundary.run(app, ["runs", "compare", places[0], str(root)]) == 2


def test_comparison_shows_errors_where_the_events_are_the_same(root, capsys):
    truth = np.linspace(0.02, 0.06, 40)
    for name, offset in (("one", 0.001), ("two", 0.002)):
        columns = {key: np.arange(40) for key in ("file_index", "entry", "run", "event")}
        with uproot.recreate(root / name / "predictions.root") as file:
            file[KEY] = WeightsState(step=5, epoch=1, loss=0.5).text()
            file["tree"] = {**columns, "pred_energy": truth + offset * np.cos(truth * 1e3), "truth_energy": truth}
    assert boundary.run(app, ["runs", "compare", str(root / "one"), str(root / "two")]) == 0
    shown = capsys.readouterr().err
    (line,) = (line for line in shown.splitlines() if "energy_res_68pct" in line)
    assert line.count("±") == 3
    assert "errors from 40 events" in shown


def test_a_time_that_cannot_be_is_left_out(root, capsys):
    for events in root.glob("one/rec/*/events.jsonl"):
        begin = json.loads(events.read_text().splitlines()[0])
        (key,) = [key for key, value in begin.items() if isinstance(value, float) and value > 1e9]
        events.write_text(events.read_text().replace(str(begin[key]), "1.7e14"))
    assert boundary.run(app, ["runs", "--root", str(root), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [bool(run["started"]) for run in document["result"]["runs"]] == [False, True]


def test_a_run_to_compare_that_is_not_there_is_said_to_be_missing(root, capsys):
    assert boundary.run(app, ["runs", "compare", str(root / "one"), str(root / "gone"), "--json"]) == 2
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["problem"], found["where"]) == (
        "there is no such directory, did you mean 'one'?",
        str(root / "gone"),
    )


def test_directory_that_is_no_run_is_the_users_to_fix(root, capsys):
    assert boundary.run(app, ["runs", "sync", str(root), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "error"
    assert document["findings"][0]["fix"] == f"xectool runs sync {root / 'two'} --json"  # the latest run in it


@pytest.fixture
def artifacts(root, monkeypatch) -> Path:
    place = root / "artifacts"
    place.mkdir()
    for name in ("one", "two"):
        (root / name).rename(place / name)
    monkeypatch.chdir(root)
    return place


def test_a_run_is_named_as_the_list_names_it(artifacts, capsys, monkeypatch):
    """`runs` lists `one` and `two`, and `runs compare one two` was refused with the path of one of the two."""
    query = ["diagnose", "query", "one", "FROM epochs"]
    for words in (["runs", "compare", "one", "two"], ["diagnose", "loss", "two"], query):
        assert boundary.run(app, words) in (0, 1)
    monkeypatch.chdir(artifacts.parent.parent)
    assert boundary.run(app, ["runs", "compare", "one", "two", "--root", str(artifacts)]) == 0
    assert boundary.run(app, ["runs", "--root", str(artifacts), "compare", "one", "two"]) == 0
    assert "no such directory" not in capsys.readouterr().err


def test_the_line_of_runs_that_are_misspelt_has_all_of_them(artifacts, capsys):
    assert boundary.run(app, ["runs", "compare", "onee", "artifacts/twoo", "--json"]) == 2
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert found["fix"] == "xectool runs compare artifacts/one artifacts/two --json"
    assert boundary.run(app, ["runs", "compare", "onee", "like-no-other", "--json"]) == 2
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert found["fix"] == "xectool runs   # lists them; those elsewhere: --root DIR"
    assert boundary.run(app, ["diagnose", "query", "onee", "~nobody here", "--json"]) == 2  # no user's home
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert found["fix"] == "xectool diagnose query artifacts/one '~nobody here' --json"


def test_a_run_that_is_misspelt_in_an_option_is_renamed_there(artifacts, capsys):
    words = ["simulate", "calib.root", "--run=artifacts/onee", "--set=a=onee"]
    with pytest.raises(MisnamedRun) as caught:
        require_record(Path("artifacts/onee"))
    assert renamed(caught.value, words) == "xectool simulate calib.root --run=artifacts/one --set=a=onee"


def test_each_run_that_is_none_is_told_with_its_own_reason(artifacts, capsys):
    """Of a file that is there it was said that there is no such directory."""
    Path("x.root").touch()
    assert boundary.run(app, ["runs", "compare", "nodir", "x.root", "--json"]) == 2
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    missing, file = "there is no such directory", "this is a file, not the directory of a run"
    assert (found["problem"], found["where"]) == (f"nodir: {missing}; x.root: {file}", "nodir, x.root")
    assert boundary.run(app, ["runs", "compare", "nodir", "nowhere", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["findings"][0]["problem"] == missing


def test_a_name_that_two_runs_have_stands_for_neither(artifacts, capsys):
    shutil.copytree(artifacts / "one", artifacts / "older" / "one")
    assert boundary.run(app, ["runs", "compare", "one", "two"]) == 2
    assert "there is no such directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "factor"),
    [
        *(("5e-4", "0.5"), ("2e-4", "0.2"), ("0", "0.1"), ("nan", "0.1"), ("1e3", "0.1"), ("1e-9", "0.001")),
        *(("0.1", "0.1"), ("0.01", "0.01"), ("0.005", "5"), ("2e-3", "2"), ("50", "50")),
    ],
)
def test_a_rate_in_place_of_a_factor_is_answered_with_the_factor_that_was_meant(tmp_path, capsys, given, factor):
    """A factor without --scale was taken for a rate: 0.1 led to a factor beyond all, and 0.01 to one of 33."""
    run = tmp_path / "r"
    with RunWriter(run) as writer:
        writer.step(StepRecord(1, 1, 0.0, 0.0, 1.0, lr=1e-3))
        writer.event("control_socket", socket=str(tmp_path / "socket"))
        assert boundary.run(app, ["ctl", str(run), "lr", given, "--json"]) == 2
        (found,) = json.loads(capsys.readouterr().out)["findings"]
        assert found["fix"].startswith(f"xectool ctl {run} lr --scale {factor}   # to {1e-3 * float(factor):.4g}")
        assert ("; --scale" in found["fix"]) == (given in ("0.1", "0.01", "0.005", "2e-3"))  # it may be either
        assert (
            boundary.run(app, [*shlex.split(found["fix"], comments=True)[1:], "--json"]) == 3
        )  # taken, and nobody is there to hear
        assert json.loads(capsys.readouterr().out)["findings"][0]["code"] == "XT-CTL-SILENT"


@pytest.mark.parametrize(
    ("now", "given", "first", "said"),
    [
        (1e-4, "1e-3", "10   # to 0.001; --scale 0.001 ", "0.001 does not say whether it is one; the rate is 0.0001"),
        (2e-4, "2e-3", "10   # to 0.002; --scale 0.002 ", "0.002 does not say whether it is one"),
        (1e-5, "2e-3", "100   # to 0.001; --scale 0.002 ", "and 200 is beyond 0.001 to 100"),
        (1e-6, "1e-3", "100   # to 0.0001; --scale 0.001 ", "and 1000 is beyond 0.001 to 100"),
        (3e-6, "2e-3", "0.002   # to 6e-09; --scale 100   # to 0.0003", "and 666.667 is beyond"),
        (1e-8, "1e-4", "100   # to 1e-06", "10000 is beyond 0.001 to 100, and 0.0001 is beyond 0.001 to 100"),
        (3e-4, "0.1", "0.1   # to 3e-05", "0.1 does not say whether it is one, and 333.333 is beyond"),
        (3e-4, "nan", "0.1   # to 3e-05", "this is no number; the rate is 0.0003 now"),
    ],
)
def test_the_meaning_that_changes_the_rate_less_comes_first(tmp_path, capsys, now, given, first, said):
    """To raise 1e-4 to 1e-3 the first line led to 1e-7."""
    with RunWriter(tmp_path / "r") as writer:
        writer.step(StepRecord(1, 1, 0.0, 0.0, 1.0, lr=now))
        writer.event("control_socket", socket=str(tmp_path / "socket"))
        assert boundary.run(app, ["ctl", str(tmp_path / "r"), "lr", given, "--json"]) == 2
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert found["fix"].startswith(f"xectool ctl {tmp_path / 'r'} lr --scale {first}")
    assert said in found["problem"]


def test_a_rate_for_a_run_that_is_over_is_answered_with_its_end(tmp_path, capsys):
    with RunWriter(tmp_path / "r") as writer:
        writer.step(StepRecord(1, 1, 0.0, 0.0, 1.0, lr=1e-3))
        writer.event("finished")
    assert boundary.run(app, ["ctl", str(tmp_path / "r"), "lr", "5e-4", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["findings"][0]["code"] == "XT-CTL-OVER"


@pytest.mark.parametrize(
    ("words", "line"), [(["lr", "--scale", "0"], "lr --scale 0.1"), (["lr"], "lr --scale 0.1"), (["clip"], "clip 0.5")]
)
def test_what_is_refused_of_a_named_run_names_it_in_its_line(tmp_path, capsys, words, line):
    run = tmp_path / "a RUN"
    assert boundary.run(app, ["ctl", str(run), *words, "--json"]) == 2
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["fix"], found["where"]) == (f"xectool ctl '{run}' {line}", f"xectool ctl '{run}' {words[0]}")
