import math
import time
from pathlib import Path

import pytest
from xectool.errors import UsageError
from xectool.runlog.reader import RunReader
from xectool.runlog.records import EpochRecord, StepRecord
from xectool.runlog.sql import query
from xectool.runlog.storage import attempt_dir
from xectool.runlog.writer import RunWriter


def write(writer: RunWriter, first: int, last: int, lr: float = 1e-3, rank: int = 0) -> None:
    for number in range(first, last + 1):
        bad = number == 7
        writer.step(
            StepRecord(
                epoch=1,
                step=number,
                time=1e9 + number,
                mono=float(number),
                loss=math.nan if bad else 1.0 / number,
                losses={"energy": math.nan if bad else 0.5, **({"timing": 0.25} if number % 2 else {})},
                lr=lr,
                grad_norm=math.inf if bad else 2.0,
                nonfinite=bad,
                rank=rank,
                block_norms={"backbone": 1.0, "heads.energy": float(number)},
                weight_norm=5.0 if number == 10 else math.nan,
            )
        )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with RunWriter(tmp_path) as writer:
        write(writer, 1, 12)
        writer.epoch(EpochRecord(1, 12, time.time(), 0.0, {"val/loss": 0.25, "train/loss": 0.5}))
        writer.event("spike", step=7, loss=3.0, suspects=[[0, 4, 1, 5]])
    with RunWriter(tmp_path) as writer:
        writer.resume(12, 1)
        write(writer, 13, 20, lr=1e-4)
        writer.event("finished")
    return tmp_path


def ask(run: Path, text: str) -> list[tuple]:
    return list(query(RunReader(run), text).rows)


def test_steps_that_count_come_out_once_with_their_attempt(run):
    assert ask(run, "SELECT count(*), min(step), max(step) FROM steps") == [(20, 1, 20)]
    assert ask(run, "SELECT attempt, count(*) FROM steps GROUP BY attempt ORDER BY attempt") == [(1, 12), (2, 8)]
    assert ask(run, "SELECT DISTINCT lr FROM steps WHERE step > 12") == [(1e-4,)]


def test_steps_of_every_rank_are_told_apart_and_those_given_up_are_left_out(tmp_path):
    with RunWriter(tmp_path) as first, RunWriter(tmp_path, attempt=1, rank=1) as second:
        write(first, 1, 12)
        write(second, 1, 12, lr=5e-4, rank=1)
    with RunWriter(tmp_path) as alone:
        alone.resume(8, 1)
        write(alone, 9, 10)
    counted = ask(tmp_path, "SELECT rank, attempt, count(*), max(step) FROM rank_steps GROUP BY ALL ORDER BY ALL")
    assert counted == [(0, 1, 8, 8), (0, 2, 2, 10), (1, 1, 8, 8)]
    assert ask(tmp_path, "SELECT DISTINCT lr FROM rank_steps WHERE rank = 1") == [(5e-4,)]
    assert ask(tmp_path, "SELECT count(*) FROM steps") == [(10,)]


def test_numbers_that_were_not_measured_are_null_and_nan_stays_nan(run):
    assert ask(run, "SELECT step FROM steps WHERE weight_norm IS NOT NULL AND NOT nonfinite") == [(10,)]
    assert ask(run, "SELECT step FROM steps WHERE isnan(loss)") == [(7,)]
    assert ask(run, "SELECT step FROM steps WHERE isinf(grad_norm)") == [(7,)]
    assert ask(run, "SELECT count(*) FROM steps WHERE loss_timing IS NULL") == [(10,)]


def test_block_norms_are_a_long_table(run):
    found = ask(run, "SELECT block, max(grad_norm), count(*) FROM modules GROUP BY block ORDER BY block")
    assert found == [("backbone", 1.0, 20), ("heads.energy", 20.0, 20)]


def test_epochs_have_a_column_a_metric_and_events_their_data_as_json(run):
    with RunWriter(run) as writer:
        writer.resume(20, 2)
        writer.epoch(EpochRecord(2, 20, 0.0, 0.0, {"val/loss": 0.125}))
    assert ask(run, 'SELECT epoch, "val/loss", "train/loss" FROM epochs ORDER BY epoch') == [
        (1, 0.25, 0.5),
        (2, 0.125, None),
    ]
    assert ask(run, "SELECT data->>'$.suspects[0][1]' FROM events WHERE kind = 'spike'") == [("4",)]
    assert ask(run, "SELECT attempt, counts FROM events WHERE kind = 'spike'") == [(1, True)]
    with RunWriter(run) as writer:
        writer.resume(0, 1)
    assert ask(run, "SELECT attempt, counts FROM events WHERE kind = 'spike'") == [(1, False)]
    assert ask(run, "SELECT count(DISTINCT pid), count(*) FROM attempts") == [(1, 4)]


def test_stacks_are_the_lines_of_the_dumps(run):
    assert ask(run, "SELECT * FROM stacks") == []
    (attempt_dir(run, 2) / "rank0000.stacks").write_text("Thread 1\n  File x\n")
    assert ask(run, "SELECT attempt, source, line, text FROM stacks WHERE line = 2") == [(2, "rank0000", 2, "  File x")]


def test_live_run_is_queried_while_it_is_written(tmp_path):
    with RunWriter(tmp_path) as writer:
        assert ask(tmp_path, "SELECT count(*) FROM steps") == [(0,)]
        assert ask(tmp_path, "SELECT count(*) FROM modules JOIN epochs USING (epoch)") == [(0,)]
        write(writer, 1, 5)
        assert ask(tmp_path, "SELECT count(*), max(loss_energy) FROM steps") == [(5, 0.5)]


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("SELECT los FROM steps", "did you mean loss?"),
        ("SELECT loss_enrgy FROM steps", "did you mean loss_energy?"),
        ("SELECT val_loss FROM epochs", 'did you mean "val/loss"?'),
        ("SELECT * FROM step", "did you mean steps?"),
        ("SELECT xqwz FROM events", "columns here: kind, time"),
        ("SELEC 1", "the tables are steps, rank_steps"),
    ],
)
def test_mistake_is_the_users_and_names_the_nearest_column(run, text, fix):
    with pytest.raises(UsageError, match="the query cannot be run") as caught:
        ask(run, text)
    assert caught.value.fix.startswith(fix)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM '{secret}'",
        "COPY steps TO '{target}'",
        "ATTACH '{target}'",
        "EXPORT DATABASE '{target}'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SET lock_configuration = false; SELECT * FROM read_text('{secret}')",
    ],
)
def test_query_reads_and_writes_no_file(run, tmp_path, text):
    secret, target = tmp_path / "secret.csv", tmp_path / "target"
    secret.write_text("a\n1\n")
    with pytest.raises(UsageError):
        ask(run, text.format(secret=secret, target=target))
    assert not target.exists()


def test_tables_are_listed_where_none_is_named(run):
    assert {row[0] for row in ask(run, "SHOW TABLES")} >= {
        "steps",
        "rank_steps",
        "modules",
        "epochs",
        "events",
        "stacks",
        "attempts",
    }


@pytest.mark.parametrize("text", ["SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b",
                                  "SELECT range FROM range(20000000)"])  # fmt: skip
def test_a_query_that_takes_too_long_is_stopped_and_says_what_to_ask(run, monkeypatch, text):
    monkeypatch.setattr("xectool.runlog.sql._LONGEST_S", 0.2)
    began = time.monotonic()
    with pytest.raises(UsageError, match=r"stopped: it took more than 0.2 s") as caught:
        ask(run, text)
    assert time.monotonic() - began < 60
    assert "LIMIT" in caught.value.fix
    assert caught.value.code == "XT-QUERY"
