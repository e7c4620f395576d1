"""SQL over a run from the command line."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from xectool.engine.diagnose.record_query import query as run_query
from xectool.errors import UsageError
from xectool.runlog.records import StepRecord
from xectool.runlog.writer import RunWriter


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    with RunWriter(tmp_path / "run") as writer:
        for step in range(1, 6):
            loss = float("nan") if step == 3 else 1.0 / step
            writer.step(StepRecord(1, step, 0.0, 0.0, loss, {"energy": loss}, nonfinite=step == 3))
    return tmp_path / "run"


def query(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "xectool", "diagnose", "query", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_query_answers_with_columns_and_rows(run_dir: Path) -> None:
    done = query(str(run_dir), "SELECT step, loss_energy FROM steps WHERE step >= 3 ORDER BY step", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["command"], document["status"]) == ("diagnose query", "ok")
    assert document["result"] == {"columns": ["step", "loss_energy"], "rows": [[3, None], [4, 0.25], [5, 0.2]]}


def test_long_values_are_cut_in_a_table_of_several_rows_alone(run_dir: Path) -> None:
    """The marks of each checkpoint stood in the table of events, 30 lines each."""
    sql = "SELECT step, repeat('ab', 500) AS marks FROM steps"
    many = query(str(run_dir), sql).stderr
    assert many.count("abab") > 5
    assert max(map(len, many.splitlines())) < 150
    assert "whole: --json, or a query for one row" in many
    one = query(str(run_dir), f"{sql} WHERE step = 1").stderr
    assert "".join(one.split()).count("ab") == 500
    assert "whole" not in one
    document = json.loads(query(str(run_dir), sql, "--json").stdout)
    assert {row[1] for row in document["result"]["rows"]} == {"ab" * 500}


def test_mistake_in_the_query_is_exit_2_with_the_nearest_column(run_dir: Path) -> None:
    done = query(str(run_dir), "SELECT los FROM steps")
    assert done.returncode == 2
    assert "did you mean loss?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["", " \n", ";;", "/* nothing */ -- here"])
def test_empty_query_is_refused_with_one_to_paste(run_dir: Path, text: str) -> None:
    with pytest.raises(UsageError, match="is empty") as caught:
        run_query(run_dir, text)
    words = shlex.split(caught.value.fix or "")
    assert len(run_query(words[3], words[4]).rows) == 5


def test_two_statements_are_refused(run_dir: Path) -> None:
    with pytest.raises(UsageError, match="holds 2 statements, not one"):
        run_query(run_dir, "SELECT 1; SELECT 2")


def test_directory_without_a_record_is_exit_2(tmp_path: Path) -> None:
    done = query(str(tmp_path), "SELECT 1", "--json")
    assert done.returncode == 2
    assert "holds no run record" in json.loads(done.stdout)["findings"][0]["problem"]


@pytest.mark.parametrize("text", ["drop table steps", "DELETE FROM steps", "create table t as FROM steps"])
def test_a_record_is_read_only(run_dir: Path, text: str) -> None:
    """`drop table steps` was answered by the words of DuckDB: an object of type View."""
    with pytest.raises(UsageError, match=r"the record is read only: it takes no [A-Z]+") as refused:
        run_query(run_dir, text)
    assert refused.value.fix.startswith("xectool diagnose query ")
