"""Save checkpoints so that no kill or full disk can tear one; load them without executing anything."""

from __future__ import annotations

import contextlib
import errno
import lzma
import os
import pickle
import shutil
import warnings
import zipfile
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from xectool.checkpoint import foreign, format, safetensors_store
from xectool.checkpoint.another import damaged_checkpoint
from xectool.checkpoint.format import Checkpoint
from xectool.checkpoint.inspection import reading
from xectool.checkpoint.inspection.protobuf import looks_like_onnx
from xectool.checkpoint.inspection.sniff import stranger
from xectool.checkpoint.inspection.trust import Trust
from xectool.checkpoint.missing import missing_checkpoint
from xectool.checkpoint.names import BEST_NAME as BEST_NAME
from xectool.checkpoint.names import LAST_NAME as LAST_NAME
from xectool.checkpoint.names import epoch_name as epoch_name
from xectool.checkpoint.soundness import require_checksums, require_finite
from xectool.errors import CheckpointError, DiskError, XecError, in_shell
from xectool.errors.refused_writes import LIFT, size_limit
from xectool.errors.unreadable import ARCHIVE_ERRORS
from xectool.runlog.atomic import sync_directory

SAFETENSORS_HEADER_LIMIT = 100_000_000  # the format's own


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint under its final name in one step: whole or not at all.

    The bytes go to ``<name>.part`` and to the disk, then the file is renamed: a kill leaves the previous one untouched.
    A name that ends in ``.safetensors`` gets raw weights and facts only.

    Raises:
        DiskError: The disk is full or refuses to write; the previous file is intact.
    """
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as stream:
            if path.suffix == ".safetensors":
                stream.write(safetensors_store.serialize(checkpoint))
            else:
                torch.save(format.pack(checkpoint), stream)
            stream.flush()
            os.fsync(stream.fileno())
        if path.suffix != ".safetensors":  # which has no checksums
            _require_whole(part)
        part.replace(path)
        sync_directory(path.parent)
    except (OSError, RuntimeError) as error:  # torch reports a failed write as RuntimeError
        raise _disk_error(path, error) from error
    finally:  # also where Ctrl-C came
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _require_whole(part: Path) -> None:
    """Read a written archive back before it takes the place of the one before.

    Raises:
        OSError: A byte differs, or the file is short: some file systems lose bytes without saying so.
    """
    try:
        with zipfile.ZipFile(part) as archive:
            damaged = archive.testzip()
    except ARCHIVE_ERRORS as error:
        raise OSError(errno.EIO, f"what was written cannot be read back ({error})") from error
    if damaged is not None:
        raise OSError(errno.EIO, f"what was written cannot be read back ({damaged})")


def publish(source: Path, target: Path) -> None:
    """Give a saved checkpoint a further name, atomically and without a second copy where possible.

    Raises:
        DiskError: Neither a link nor a copy could be made.
    """
    part = target.with_name(target.name + ".part")
    try:
        part.unlink(missing_ok=True)
        try:
            os.link(source, part)
        except OSError:  # file systems without hard links, and names on another file system
            shutil.copyfile(source, part)
            with part.open("rb+") as stream:
                os.fsync(stream.fileno())
        part.replace(target)
        sync_directory(target.parent)
    except OSError as error:
        raise _disk_error(target, error) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def load(path: Path) -> Checkpoint:
    """Return a checkpoint of ours, or of an older layout translated to ours, on the CPU.

    Raises:
        CheckpointError: The file is missing, is not a checkpoint, is damaged, or holds an unknown layout.
    """
    if is_safetensors(path):
        return safetensors_store.load(path)
    payload = _read(path)
    if isinstance(payload, dict) and payload.get("format") == format.FORMAT_NAME:
        return format.unpack(payload, str(path))
    if not isinstance(payload, dict):
        raise _not_a_checkpoint(path, f"it holds a {type(payload).__name__}, not a dictionary of sections")
    return _translated(payload, path, needs_config=True)


def load_start(path: Path) -> Checkpoint:
    """Return a checkpoint to start other training from: as :func:`load`, and bare older weights with an empty config.

    Raises:
        CheckpointError: As for :func:`load`.
    """
    if not is_safetensors(path):
        payload = _read(path)
        if isinstance(payload, dict) and foreign.is_foreign(payload):
            return _translated(payload, path, needs_config=False)
    return load(path)


def _translated(payload: dict[str, Any], path: Path, needs_config: bool) -> Checkpoint:
    require_checksums(path)  # our own layout has a digest over its content
    try:
        layout = foreign.recognise(payload)
        sets = {which: foreign.state_dict(payload, which) for which in layout.weights}
        config = foreign.to_config(payload) if needs_config or layout.has_config else {}
        assumed = {"assumed": foreign.assumed(payload)} if layout.has_config else {}
    except CheckpointError as error:
        error.where = error.where or str(path)
        error.fix = error.fix.replace("PATH", in_shell(path))
        raise
    return Checkpoint(
        meta={"kind": layout.kind, "config": config, "epoch": layout.epoch, **assumed},
        model=sets["model"],
        ema=sets.get("ema", {}),
        best=sets.get("best", {}),
        origin=f"older {layout.kind}",
    )


def is_safetensors(path: Path) -> bool:
    """Return whether a file begins like safetensors: the length of a header, then the header's brace."""
    if not os.path.isfile(path):
        return False
    with path.open("rb") as stream:
        head = stream.read(9)
    return head[8:] == b"{" and int.from_bytes(head[:8], "little") < SAFETENSORS_HEADER_LIMIT


def newest(run_dir: Path) -> tuple[Path, Checkpoint, list[XecError]]:
    """Return the furthest sound checkpoint of a run, and why better candidates were passed over.

    Sound is what is whole and holds numbers, in weights, average and optimizer alike. That is ``checkpoint_last.pt``
    where it is sound; else the one with the most optimizer steps, whatever the times of the files say: copying a run
    directory does not keep them.

    Raises:
        CheckpointError: The run holds no sound checkpoint.
    """
    rejected: list[XecError] = []
    best: tuple[Path, Checkpoint] | None = None
    last = run_dir / LAST_NAME
    others = sorted(path for path in run_dir.glob("checkpoint_*.pt") if path != last)
    for path in [last, *others] if last.exists() else others:
        try:
            checkpoint = load(path)
            require_finite(checkpoint.model, path)
            require_finite(checkpoint.ema, path, "averaged weights")
            require_finite(_moments(checkpoint), path, "optimizer's moments")
        except CheckpointError as error:
            rejected.append(error)
            continue
        if checkpoint.training and (best is None or checkpoint.step > best[1].step):
            best = path, checkpoint
        if best is not None and path == last:
            break
    if best is not None:
        return *best, rejected
    reasons = "; ".join(f"{error.where}: {error.problem}" for error in rejected)
    raise CheckpointError(
        f"no checkpoint to resume from ({reasons})" if reasons else "no checkpoint to resume from",
        where=str(run_dir),
        fix="start afresh: leave out --resume and choose another --run-name",
        code="XT-CKPT-NONE",
    )


def _moments(checkpoint: Checkpoint) -> dict[str, Tensor]:
    optimizer = checkpoint.training.get("optimizer")
    state = optimizer.get("state") if isinstance(optimizer, dict) else None
    each = {key: item for key, item in (state if isinstance(state, dict) else {}).items() if isinstance(item, dict)}
    named = {f"{name} of parameter {key}": value for key, item in each.items() for name, value in item.items()}
    return {name: value for name, value in named.items() if isinstance(value, Tensor)}


# What garbled bytes make the unpickler raise; it runs no code, but it trusts the structure of what it reads.
GARBLED = (*ARCHIVE_ERRORS, TypeError, AttributeError, AssertionError)
ZIP_MAGIC, PICKLE_MAGIC, XZ_MAGIC = b"PK", b"\x80", b"\xfd7zXZ"


def _read(path: Path) -> Any:
    if not os.path.isfile(path):
        raise missing_checkpoint(path)
    with path.open("rb") as stream:
        if not stream.read(8).startswith((ZIP_MAGIC, PICKLE_MAGIC, XZ_MAGIC)):
            raise _not_a_checkpoint(path, "neither an archive nor a pickle")
    try:
        with _opened(path) as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's remarks on odd protocols of damaged files
            return torch.load(stream, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, *GARBLED) as error:
        raise _unsafe_or_garbled(path, error) from error


def _opened(path: Path) -> IO[bytes]:
    with path.open("rb") as stream:
        compressed = stream.read(8).startswith(XZ_MAGIC)
    if compressed:
        return BytesIO(lzma.decompress(path.read_bytes()))
    return path.open("rb")


def _not_a_checkpoint(path: Path, detail: str) -> CheckpointError:
    with path.open("rb") as stream:
        head = stream.read(64)
    fix = ""
    if not head:
        what = "the file is empty"
    elif head.startswith(b"PK"):
        what = "the archive is truncated or damaged"
    elif head.startswith((PICKLE_MAGIC, XZ_MAGIC)):
        what = f"it is damaged (first bytes {head[:8]!r})"
    elif looks_like_onnx(memoryview(head)):
        what = "it is an ONNX graph, not a checkpoint"
        fix = f"xectool inspect-ckpt {in_shell(path)}   # names the checkpoint it was exported from"
    else:
        what, fix = stranger(head, path.stat().st_size)
        fix = fix.replace("FILE", in_shell(path))
    problem = f"cannot read the checkpoint: {what} ({detail})"
    if not fix:
        return damaged_checkpoint(path, problem)
    return CheckpointError(problem, where=str(path), fix=fix, code="XT-CKPT-CORRUPT")


def _unsafe_or_garbled(path: Path, error: Exception) -> CheckpointError:
    """Return why a file was refused: for what it asks for, however it is packed, else as no checkpoint.

    PyTorch's own list of unsafe names is of archives that it wrote, and of their own pickle only.
    """
    try:
        found, said = reading.read(path).unsafe, None
    except CheckpointError as damage:
        found, said = [], damage
    refused = isinstance(error, pickle.UnpicklingError)
    unsafe = sorted({item.name for item in found if refused or item.trust == Trust.CODE.value})
    if not unsafe:
        if said is not None and said.code == "XT-CKPT-CORRUPT":
            return said  # in words of its own: where it ends, and what is missing
        reason = next(iter(str(error).splitlines()), "").partition(" This is an internal miniz error")[0]
        return _not_a_checkpoint(path, reason if refused else f"{type(error).__name__}: {reason}")
    problem = f"the file would run code when loaded, so it was not: it contains {', '.join(unsafe[:5])}"
    fix = "ask its author for a state_dict saved with tensors and plain types only"
    return CheckpointError(problem, where=str(path), fix=fix, code="XT-CKPT-UNSAFE")


def _disk_error(path: Path, error: Exception) -> DiskError:
    # torch answers a failed write with the state of its archive; what the system said is the context of that
    said = error.__context__ if isinstance(error.__context__, OSError) else error
    reason = getattr(said, "strerror", None) or said
    if limit := size_limit(said):
        problem, fix = f"cannot write the checkpoint: {limit}", f"{LIFT}; then --resume auto"
        return DiskError(problem, where=str(path), fix=fix, code="XT-DISK-CKPT")
    free, problem = "", f"cannot write the checkpoint: {reason}"
    with contextlib.suppress(OSError):
        free = f" ({shutil.disk_usage(path.parent).free / 1e9:.2f} GB free)"
    fix = "free some space or set checkpoint.save_dir to another disk, then --resume auto"
    return DiskError(f"{problem}{free}", where=str(path), fix=fix, code="XT-DISK-CKPT")
