"""``diagnose log``: the first cause that any training logs show, by known signatures."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from xectool.diagnosis.signatures import LogCause, rank_causes, scan_file
from xectool.errors import UsageError, counted, in_shell, nearest
from xectool.findings import Finding

# Files of a run directory that are no logs; everything else in a directory is read.
_NO_LOGS = {
    ".bin", ".db", ".h5", ".html", ".npy", ".npz", ".onnx", ".parquet", ".pdf", ".pickle", ".pkl", ".png", ".pt",
    ".pth", ".py", ".pyc", ".root", ".safetensors", ".so", ".svg", ".tar", ".yaml", ".yml", ".zip",
}  # fmt: skip
_NO_TEXT = {
    b"root\x00": ("a ROOT file", "xectool check-data"),
    b"PK\x03\x04": ("a checkpoint or a zip archive", "xectool inspect-ckpt"),
    b"\x89HDF": ("an HDF5 file", "file"),
    b"\x89PNG": ("a picture", "file"),
    b"%PDF": ("a PDF document", "file"),
}


@dataclass(frozen=True)
class LogRead:
    """One file that was read: its path, and the number of its last line with text."""

    path: str
    lines: int


@dataclass(frozen=True)
class LogDiagnosis:
    """What logs show.

    Attributes:
        verdict: One line.
        causes: What was found, the first cause first; consequences and victims last.
        files: What was read.
    """

    verdict: str
    causes: tuple[LogCause, ...]
    files: tuple[LogRead, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing was found."""
        return not self.causes

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The causes as findings."""
        return tuple(cause.finding() for cause in self.causes)


def log(files: Sequence[Path | str]) -> LogDiagnosis:
    """Classify logs of one run, of any trainer: all ranks together, so that the first cause is found and not a victim.

    Args:
        files: Files, plain or compressed, directories, globs and pipes; ``-`` is what is piped in.

    Raises:
        UsageError: A path names nothing, or cannot be read.
    """
    paths = list(dict.fromkeys(path for given in files for path in _expanded(str(given))))
    if not paths:
        raise UsageError("no log is named", where="command line", fix="xectool diagnose log train.log")
    scans = [scan_file(path) for path in paths]
    causes = rank_causes(scans)
    read = tuple(LogRead(str(scan.path), scan.lines) for scan in scans)
    return LogDiagnosis(_verdict(causes, read), causes, read)


def _verdict(causes: Sequence[LogCause], read: Sequence[LogRead]) -> str:
    if causes:
        first = causes[0]
        rank = f" on rank {first.rank}" if first.rank >= 0 else ""
        return f"{first.code}{rank}: {first.problem}"
    lines = sum(item.lines for item in read)
    if not lines:
        return "nothing to read: the logs are empty"
    return f"no error and no known signature in {counted(lines, 'line')} of {counted(len(read), 'file')}"


def _expanded(given: str) -> Iterator[Path]:
    path = Path("/dev/stdin" if given == "-" else given).expanduser()
    if path.is_dir():
        found = sorted(inside for inside in path.rglob("*") if inside.is_file() and _may_be_log(inside, path))
        if not found:
            raise UsageError("no log in this directory", where=str(path), fix=f"ls -lR {in_shell(path)}")
        yield from found
    elif path.exists():
        _require_text(path)
        yield path
    else:
        matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
        if not matches:
            raise _missing(path)
        yield from (inside for match in matches for inside in (_expanded(str(match)) if match.is_dir() else (match,)))


def _require_text(path: Path) -> None:
    """Refuse what is named and no text: in a ROOT file or a checkpoint no line is known, and all would be well."""
    if not path.is_file() or not os.access(path, os.R_OK):
        return
    try:
        with path.open("rb") as stream:
            head = stream.read(8)
    except OSError:  # told where all of it is read
        return
    for magic, (what, fix) in _NO_TEXT.items():
        if head.startswith(magic):
            raise UsageError(f"this is {what}, not a log", where=str(path), fix=f"{fix} {in_shell(path)}")


def _may_be_log(path: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return not hidden and path.suffix.lower() not in _NO_LOGS


def _missing(path: Path) -> UsageError:
    beside = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
    near = nearest(path.name, beside, count=1)
    fix = f"did you mean {in_shell(path.with_name(near[0]))}?" if near else f"ls {in_shell(path.parent)}"
    return UsageError("no such log", where=str(path), fix=fix)
