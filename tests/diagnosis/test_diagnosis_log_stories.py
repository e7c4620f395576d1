# ruff: noqa: E501  the lines of logs are quoted as they are
"""Whole logs: several ranks, chained exceptions, combinations; the first cause is told first and a victim never."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import resource
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xectool import engine
from xectool.diagnosis.signatures.lines import MAX_LINE_BYTES, read_lines
from xectool.errors import UsageError

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
CLOSED = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:20133"
)
TIMEOUT = (
    "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete"
)


def raised(last: str, prefix: str = "") -> str:
    lines = ["Traceback (most recent call last):", '  File "/w/train.py", line 12, in step', "    f(x)", last]
    return "".join(f"{prefix}{line}\n" for line in lines)


def write(directory: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (directory / f"{name}.log").write_text(text)
    return directory


@pytest.mark.parametrize("victim", [CLOSED, TIMEOUT])
@pytest.mark.parametrize("culprit", ["KeyError: 'npho'", OOM, "ValueError: too many values to unpack (expected 2)"])
@pytest.mark.parametrize("victim_rank", [0, 1])
def test_the_rank_that_failed_is_told_before_the_ranks_that_waited(
    tmp_path: Path, victim: str, culprit: str, victim_rank: int
) -> None:
    names = {f"rank{victim_rank}": raised(victim), f"rank{1 - victim_rank}": raised(culprit)}
    result = engine.diagnose.log([write(tmp_path, **names)])
    first = result.causes[0]
    assert culprit[:20] in first.problem
    assert first.rank == 1 - victim_rank
    assert result.causes[-1].role in ("victim", "consequence")


ABORTED = (
    "[rank0]:[E1122 10:32:11.402 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: x\n"
    "[rank0]: terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "[rank0]: Fatal Python error: Aborted\n"
)


def test_what_a_rank_says_as_it_dies_of_a_timeout_is_not_the_cause(tmp_path: Path) -> None:
    write(tmp_path, rank0=ABORTED, rank3=raised(OOM))
    assert [cause.code for cause in engine.diagnose.log([tmp_path]).causes] == ["XT-OOM-GPU", "XT-COLLECTIVE-TIMEOUT"]
    write(tmp_path, rank3="step 12\n")
    assert engine.diagnose.log([tmp_path]).causes[0].code == "XT-COLLECTIVE-TIMEOUT"


@pytest.mark.parametrize("prefix", ["[rank{}]: ", "[default{}]:", "[1,{}]<stderr>:", "{}: ", "[{}] "])
def test_interleaved_ranks_in_one_file_are_followed_each_by_itself(tmp_path: Path, prefix: str) -> None:
    one, two = (raised(last, prefix.format(rank)).splitlines() for rank, last in ((0, CLOSED), (1, "KeyError: 'b'")))
    mixed = "\n".join(line for pair in zip(one, two, strict=True) for line in pair)
    result = engine.diagnose.log([write(tmp_path, all=mixed) / "all.log"])
    assert [(cause.code, cause.rank) for cause in result.causes] == [("XT-UNKNOWN", 1), ("XT-PEER-LOST", 0)]


def test_times_decide_between_two_causes(tmp_path: Path) -> None:
    early, late = "2026-11-21 08:00:01,5 INFO step\n", "2026-11-21 09:00:00,0 INFO step\n"
    write(tmp_path, a=late + raised(OOM), b=early + raised("OSError: [Errno 28] No space left on device"))
    assert engine.diagnose.log([tmp_path]).causes[0].code == "XT-DISK-FULL"
    write(tmp_path, a=early + raised(OOM), b=late + raised("OSError: [Errno 28] No space left on device"))
    assert engine.diagnose.log([tmp_path]).causes[0].code == "XT-OOM-GPU"


def test_the_turn_of_the_year_does_not_turn_the_order(tmp_path: Path) -> None:
    write(
        tmp_path,
        a="2026-01-01 00:00:05 INFO x\n" + raised(OOM),
        b="2025-12-31 23:59:00 INFO x\n" + raised("OSError: [Errno 28] No space left on device"),
    )
    assert engine.diagnose.log([tmp_path]).causes[0].code == "XT-DISK-FULL"


def test_without_times_the_order_of_the_lines_decides(tmp_path: Path) -> None:
    text = "loss: nan\n" + raised(OOM)
    assert [cause.code for cause in engine.diagnose.log([write(tmp_path, a=text) / "a.log"]).causes] == [
        "XT-NAN",
        "XT-OOM-GPU",
    ]


def test_the_inner_exception_of_a_worker_comes_before_its_wrapper(tmp_path: Path) -> None:
    text = (
        raised("KeyError: Caught KeyError in DataLoader worker process 0.")
        + "Original "
        + raised("uproot.exceptions.KeyInFileError: not found: 'nphoo'")
    )
    assert engine.diagnose.log([write(tmp_path, a=text)]).causes[0].code == "XT-ROOT-MISSING-KEY"


def test_an_unknown_inner_exception_is_quoted_not_its_wrapper(tmp_path: Path) -> None:
    text = (
        raised("IndexError: Caught IndexError in DataLoader worker process 3.") + "Original " + raised("IndexError: 7")
    )
    cause = engine.diagnose.log([write(tmp_path, a=text)]).causes[0]
    assert cause.code == "XT-WORKER-ERROR"
    assert cause.problem.endswith("IndexError: 7")


CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
HANDLED = "\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize("link", [CAUSED, HANDLED])
def test_of_a_chain_the_original_is_the_cause(tmp_path: Path, link: str) -> None:
    text = raised("OSError: [Errno 28] No space left on device") + link + raised(OOM)
    causes = engine.diagnose.log([write(tmp_path, a=text)]).causes
    assert [cause.code for cause in causes] == ["XT-DISK-FULL"]
    text = raised("KeyError: 'x'") + link + raised("RuntimeError: no such table") + link + raised("ValueError: end")
    causes = engine.diagnose.log([write(tmp_path, a=text)]).causes
    assert len(causes) == 1
    assert causes[0].problem.endswith("KeyError: 'x'")


def test_a_known_link_of_a_chain_names_the_cause_and_quotes_the_beginning(tmp_path: Path) -> None:
    text = raised("KeyError: 'foo'") + CAUSED + raised("RuntimeError: Unrecognized mode=foo, should be one of: default")
    cause = engine.diagnose.log([write(tmp_path, a=text)]).causes[0]
    assert cause.code == "XT-COMPILE-MODE"
    assert "began with: KeyError: 'foo'" in cause.evidence


def test_a_spawned_process_comes_before_what_reports_it(tmp_path: Path) -> None:
    text = (
        raised("torch.multiprocessing.spawn.ProcessRaisedException: ")
        + "\n-- Process 1 terminated with the following error:\n"
        + raised("ZeroDivisionError: division by zero")
    )
    assert engine.diagnose.log([write(tmp_path, a=text)]).causes[0].problem.endswith("division by zero")


def test_the_launcher_is_never_first(tmp_path: Path) -> None:
    text = (
        raised("KeyError: 'a'", "[rank1]: ")
        + (
            "W1121 08:00:00.1 1 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 12 closing signal SIGTERM\n"
            "E1121 08:00:00.2 1 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1) local_rank: 1 (pid: 13)\n"
        )
        + raised("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")
    )
    causes = engine.diagnose.log([write(tmp_path, a=text)]).causes
    assert "KeyError" in causes[0].problem
    assert "XT-LAUNCHER" in {cause.code for cause in causes[1:]}


@pytest.mark.parametrize(
    ("what", "codes"),
    [
        ("[Rank 3] Process group watchdog thread terminated with exception", ["XT-COLLECTIVE-TIMEOUT"]),
        ("vector::_M_range_check", ["XT-UNKNOWN", "XT-COLLECTIVE-TIMEOUT"]),
    ],
)
def test_an_abort_of_cpp_is_told_by_its_message(tmp_path: Path, what: str, codes: list[str]) -> None:
    """The watchdog of NCCL ends a process so: the line above its message was an unknown error, and came first."""
    text = (
        "[rank3]:[E1120 03:44:21.8 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: W\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        f"  what():  {what}\n"
    )
    causes = engine.diagnose.log([write(tmp_path, a=text)]).causes
    assert [cause.code for cause in causes] == codes
    assert what in " ".join(causes[0].evidence)


def test_aborts_of_two_ranks_that_write_into_each_other_are_told_by_their_messages(tmp_path: Path) -> None:
    abort = "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    what = "  what():  [Rank {}] Process group watchdog thread terminated with exception\n"
    text = f"{abort}{abort}step 4\n{what.format(0)}{what.format(1)}"
    (cause,) = engine.diagnose.log([write(tmp_path, a=text)]).causes
    assert (cause.code, cause.count) == ("XT-COLLECTIVE-TIMEOUT", 2)


def test_an_abort_without_a_message_takes_that_of_no_later_one(tmp_path: Path) -> None:
    aborts = [f"terminate called after throwing an instance of '{name}'\n" for name in ("int", "std::runtime_error")]
    text = aborts[0] + "step 4\n" * 200 + aborts[1] + "  what():  vector::_M_range_check\n"
    (cause, *_) = engine.diagnose.log([write(tmp_path, a=text)]).causes
    assert "_M_range_check" in cause.problem or "_M_range_check" in " ".join(cause.evidence)
    first = [line for line in cause.evidence if ":1:" in line]
    assert not [line for line in first if "range_check" in line]


def test_what_ended_a_process_is_a_cause_however_it_is_taken_elsewhere(tmp_path: Path) -> None:
    text = "terminate called after throwing an instance of 'std::runtime_error'\n  what():  ERROR: database is locked\n"
    (cause,) = engine.diagnose.log([write(tmp_path, a=text)]).causes
    assert (cause.code, cause.role) == ("XT-DB-LOCKED", "cause")


def test_a_lock_that_was_survived_comes_after_what_ended_the_run(tmp_path: Path) -> None:
    text = "WARNING mlflow: (sqlite3.OperationalError) database is locked, retrying\n" * 9 + "step 4\n" + raised(OOM)
    causes = engine.diagnose.log([write(tmp_path, a=text)]).causes
    assert [(cause.code, cause.count) for cause in causes] == [("XT-OOM-GPU", 1), ("XT-DB-LOCKED", 9)]


def test_an_unknown_error_that_was_survived_does_not_hide_the_known_end(tmp_path: Path) -> None:
    text = raised("ValueError: plot failed") + "step 1 loss 0.1\n" * 200 + raised(OOM)
    assert [cause.code for cause in engine.diagnose.log([write(tmp_path, a=text)]).causes] == ["XT-OOM-GPU"]


def test_what_is_ours_keeps_the_line_it_gave(tmp_path: Path) -> None:
    """A width of 48 was answered with the explanation's example in place of the fix two lines below it."""
    batches = "".join(
        f"error DAT-07: batch {size}\n  fix: xectool train c.yaml --batch {size}\n" for size in range(1, 9)
    )
    text = (
        "[rank1]: error CFG-44: model.encoder_dim 48 must be a multiple of 32\n"
        "[rank1]:   where: c.yaml:3 (model.encoder_dim)\n"
        "[rank0]: step 3\n"
        "[rank1]:   evidence: seen\n"
        "[rank1]:   fix: model.encoder_dim: 64\n"
        f"{batches}"
        "error XT-OOM-HOST: the host has no room\n"
        "step 4\n"
        "  fix: of something else\n"
    )
    first, many, last = engine.diagnose.log([write(tmp_path, a=text)]).causes
    assert (first.code, first.rank, first.fix[0]) == ("CFG-44", 1, "model.encoder_dim: 64")
    assert first.problem.endswith(": model.encoder_dim 48 must be a multiple of 32")
    assert "error CFG" not in first.problem
    assert (many.count, many.fix[0]) == (8, "xectool train c.yaml --batch 1")  # only the first are kept
    assert last.fix[0].startswith("xectool ")


def test_a_fix_of_another_finding_or_half_of_one_is_not_given(tmp_path: Path) -> None:
    text = "error CFG-46: a\nerror CFG-46: b\n  fix: --set b=1\nerror CFG-44: c\n  fix: xectool a \\\n    --set c=1\n"
    for cause in engine.diagnose.log([write(tmp_path, a=text)]).causes:
        assert not any("b=1" in line or line.endswith("\\") for line in cause.fix), cause.code


def test_what_the_evidence_of_ours_quotes_is_looked_at(tmp_path: Path) -> None:
    text = (
        f"error XT-RANK-DIED: rank 1 ended\n  where: x\n  evidence: {OOM}\n  evidence: Segmentation fault (core dumped)\n"
        "  fix: xectool diagnose log logs\n"
    )
    causes = engine.diagnose.log([write(tmp_path, a=text)]).causes
    fixes = {cause.code: cause.fix[0] for cause in causes}
    assert fixes.keys() == {"XT-RANK-DIED", "XT-OOM-GPU"}
    assert fixes["XT-RANK-DIED"] == "xectool diagnose log logs"
    assert not any("evidence:" in cause.problem for cause in causes)


def test_the_exception_before_our_finding_does_not_hide_its_line(tmp_path: Path) -> None:
    ours = f"error XT-OOM-GPU: no room\n  evidence: {OOM}\n  fix: xectool train c.yaml --set data.batch_size=8\n"
    (cause,) = engine.diagnose.log([write(tmp_path, a=raised(OOM) + ours)]).causes
    assert cause.fix[0] == "xectool train c.yaml --set data.batch_size=8"
    (cause,) = engine.diagnose.log([write(tmp_path, a=ours)]).causes
    assert cause.count == 1


def test_unknown_text_is_quoted_with_its_place(tmp_path: Path) -> None:
    path = write(tmp_path, a="step 1\n" + raised("acme.FluxError: capacitor")) / "a.log"
    result = engine.diagnose.log([path])
    assert result.causes[0].code == "XT-UNKNOWN"
    assert "no known signature" in result.verdict
    assert result.causes[0].where == f"{path}:5"
    assert "acme.FluxError: capacitor" in result.verdict


def test_a_sound_log_has_no_cause(tmp_path: Path) -> None:
    text = "".join(f"epoch 1 step {step} loss 0.{step:03d} lr 3e-4 inf_rate=0\n" for step in range(500))
    result = engine.diagnose.log([write(tmp_path, a=text)])
    assert result.healthy
    assert "500 lines" in result.verdict


# --- files of every kind -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.log.gz", gzip.compress),
        ("a.log.bz2", bz2.compress),
        ("a.log.xz", lzma.compress),
        ("gz-without-name", gzip.compress),
    ],
)
def test_compressed_logs_are_read(tmp_path: Path, name: str, pack: object) -> None:
    (tmp_path / name).write_bytes(pack(raised(OOM).encode()))  # type: ignore[operator]
    assert engine.diagnose.log([tmp_path / name]).causes[0].code == "XT-OOM-GPU"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_pipe_is_read_to_its_end(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    held = pack(f"epoch 1\n{raised(OOM)}".encode())

    def fill() -> None:
        with pipe.open("wb", buffering=0) as stream:
            for part in (held[:20], held[20:]):
                stream.write(part)
                time.sleep(0.2)

    writer = threading.Thread(target=fill)
    writer.start()
    cause = engine.diagnose.log([pipe]).causes[0]
    writer.join()
    assert (cause.code, cause.evidence[0].split(":")[:2]) == ("XT-OOM-GPU", [str(pipe), "5"]), cause.evidence


def test_what_is_piped_in_is_read(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "xectool", "diagnose", "log", "-", "--json"]
    done = subprocess.run(command, input=raised(OOM).encode(), capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["result"]["causes"][0]["code"] == "XT-OOM-GPU"


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs Linux")
def test_a_file_that_fails_when_it_is_read_is_named() -> None:
    with pytest.raises(UsageError, match=r"cannot be read[\s\S]*/proc/self/mem"):
        engine.diagnose.log(["/proc/self/mem"])


def test_a_gz_that_was_cut_short_gives_what_it_has(tmp_path: Path) -> None:
    noise = "".join(random.Random(1).choices("abcdefgh ", k=200_000))
    packed = gzip.compress(f"{raised(OOM)}{noise}".encode())
    (tmp_path / "a.gz").write_bytes(packed[: len(packed) * 3 // 4])
    assert engine.diagnose.log([tmp_path / "a.gz"]).causes[0].code == "XT-OOM-GPU"


def test_zstd_says_how_to_unpack(tmp_path: Path) -> None:
    (tmp_path / "a.zst").write_bytes(b"\x28\xb5\x2f\xfd1234")
    with pytest.raises(UsageError, match="zstd -d"):
        engine.diagnose.log([tmp_path / "a.zst"])


def test_utf16_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(raised(OOM), encoding="utf-16")
    assert engine.diagnose.log([tmp_path / "a.log"]).causes[0].code == "XT-OOM-GPU"


def test_progress_bars_and_colours_do_not_hide_an_error(tmp_path: Path) -> None:
    bar = "".join(f"\r\x1b[32m{step}%|###   |\x1b[0m loss=0.{step}" for step in range(100))
    (tmp_path / "a.log").write_text(f"start\r\n{bar}\r\x1b[1;31m{OOM}\x1b[0m\x1b]0;title\x07\n", newline="")
    cause = engine.diagnose.log([tmp_path / "a.log"]).causes[0]
    assert (cause.code, cause.where) == ("XT-OOM-GPU", f"{tmp_path / 'a.log'}:2")


def test_binary_junk_around_an_error_does_no_harm(tmp_path: Path) -> None:
    junk = random.Random(2).randbytes(300_000)
    (tmp_path / "a.log").write_bytes(junk + b"\n" + OOM.encode() + b"\n" + junk)
    assert "XT-OOM-GPU" in {cause.code for cause in engine.diagnose.log([tmp_path / "a.log"]).causes}


def test_pure_junk_and_empty_files_are_no_errors(tmp_path: Path) -> None:
    (tmp_path / "junk.log").write_bytes(random.Random(3).randbytes(200_000))
    (tmp_path / "empty.log").write_text("")
    assert engine.diagnose.log([tmp_path / "junk.log"]).healthy
    result = engine.diagnose.log([tmp_path / "empty.log"])
    assert result.healthy
    assert "empty" in result.verdict


def test_directories_and_globs_are_opened_and_other_files_left_out(tmp_path: Path) -> None:
    (tmp_path / "attempt_0" / "1").mkdir(parents=True)
    (tmp_path / "attempt_0" / "1" / "stderr.log").write_text(raised("KeyError: 'a'"))
    (tmp_path / "data.root").write_text(OOM)
    (tmp_path / ".hidden").write_text(OOM)
    result = engine.diagnose.log([tmp_path])
    assert [(cause.code, cause.rank) for cause in result.causes] == [("XT-UNKNOWN", 1)]
    assert engine.diagnose.log([f"{tmp_path}/*/1/std*"]).causes == result.causes


def test_a_missing_log_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("x")
    with pytest.raises(UsageError, match=r"train\.log"):
        engine.diagnose.log([tmp_path / "trian.log"])
    with pytest.raises(UsageError, match="ls -lR"):
        engine.diagnose.log([write(tmp_path / "empty")] if (tmp_path / "empty").mkdir() else [tmp_path / "empty"])


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp")), min_size=1)))
def test_lines_come_back_as_they_were_written(lines: list[str]) -> None:
    path = Path("/tmp") / "xectool-lines-property.log"
    path.write_bytes("\n".join(lines).encode())
    assert list(read_lines(path)) == [(number, line) for number, line in enumerate(lines, 1) if line.rstrip()]
    path.unlink()


@pytest.mark.parametrize("size", [MAX_LINE_BYTES - 1, MAX_LINE_BYTES, 3 * MAX_LINE_BYTES + 5])
def test_a_long_line_is_looked_at_in_pieces_and_keeps_its_number(tmp_path: Path, size: int) -> None:
    (tmp_path / "a.log").write_bytes(b"x\n" + b"y" * size + b"\n" + b"z\n")
    found = list(read_lines(tmp_path / "a.log"))
    assert sum(len(text) for number, text in found if number == 2) == size
    assert found[-1] == (3, "z")
    assert max(len(text) for _, text in found) <= MAX_LINE_BYTES


def test_a_log_of_any_size_is_read_in_bounded_memory_and_time(tmp_path: Path) -> None:
    path = tmp_path / "big.log"
    line = b"2026-11-21 08:00:00,123 INFO epoch 1 step 123 loss 0.1234 lr 3e-4 events/s 1234\n"
    with path.open("wb") as file:
        for _ in range(20):
            file.write(line * 12_000)
        file.write(b"a" * (20 << 20) + b"\n" + OOM.encode())
    program = """
        import resource, sys
        from xectool import engine
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = engine.diagnose.log([sys.argv[1]])
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(result.causes[0].code, (after - before) // 1024)
    """
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(path)], capture_output=True, text=True, check=True
    )
    code, grown_mb = done.stdout.split()
    assert code == "XT-OOM-GPU"
    assert int(grown_mb) < 60, "memory grows with the log"
    assert time.monotonic() - started < 60
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0
