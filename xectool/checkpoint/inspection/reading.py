"""Any file to its contents, by what it is and not by how it is called."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from xectool.checkpoint.inspection.archive import LOCAL_MAGIC
from xectool.checkpoint.inspection.contents import Contents
from xectool.checkpoint.inspection.embedded import hidden_globals, is_tar
from xectool.checkpoint.inspection.opcodes import PICKLE_MAGIC, read_pickle
from xectool.checkpoint.inspection.protobuf import looks_like_onnx
from xectool.checkpoint.inspection.safetensors_file import looks_like_safetensors, read_safetensors
from xectool.checkpoint.inspection.sniff import stranger
from xectool.checkpoint.inspection.torch_legacy import read_pickles, read_tar
from xectool.checkpoint.inspection.torch_zip import read_zip
from xectool.checkpoint.inspection.trust import Trust, trust_of
from xectool.checkpoint.inspection.window import Content, open_content, unreadable
from xectool.checkpoint.inspection.zip_headers import CENTRAL_MAGIC, END_MAGIC
from xectool.checkpoint.missing import missing_checkpoint
from xectool.checkpoint.names import BEST_NAME, LAST_NAME
from xectool.errors import CheckpointError, in_shell

_HEAD: Final = 4096
_TAIL: Final = 1 << 16
_SEARCHED: Final = 1 << 24
_PROTOCOLS: Final = range(2, 6)
_TEXT_OPCODES: Final = b"(c]}ldi\x80"
_MAX_TEXT_PICKLE: Final = 1 << 20


def read(path: Path) -> Contents:
    """Take a model file apart.

    Raises:
        CheckpointError: It is missing, or holds no model: the message names what it is instead.
    """
    if not os.path.isfile(path):  # Path.is_file raises for a name that is too long
        raise _missing(path)
    content = open_content(path)
    head = bytes(content.data[:_HEAD])
    if head.startswith((LOCAL_MAGIC, END_MAGIC)):
        return read_zip(content)
    if is_tar(content.data):
        return read_tar(content)
    if looks_like_safetensors(head, len(content.data)):
        return _safetensors(content, head)
    if head.startswith(PICKLE_MAGIC) and len(head) > 1 and head[1] in _PROTOCOLS:
        return read_pickles(content)
    return _without_magic(content, head)


def _safetensors(content: Content, head: bytes) -> Contents:
    """Read safetensors; a file that begins like a pickle too is one for programs that look no further."""
    out = read_safetensors(content)
    if head.startswith(PICKLE_MAGIC):
        out.unsafe += [item for item in hidden_globals(content.data, "", 0) if item.trust == Trust.CODE.value]
    return out


def _without_magic(content: Content, head: bytes) -> Contents:
    """Read the two formats that begin like anything: ONNX, and pickles of the first protocols."""
    from xectool.checkpoint.inspection.onnx_file import read_onnx

    if head[:1] in (b"\x08", b"\x12", b":") and looks_like_onnx(content.data):
        return read_onnx(content)
    if _is_text_pickle(content.data):
        return read_pickles(content)
    if content.path.suffix.lower() == ".onnx" and head[:1] == b"\x08":
        return read_onnx(content)
    raise unreadable(content.path, *(_headless(content.data) or stranger(head, len(content.data))))


def _headless(data: memoryview) -> tuple[str, str] | None:
    """Return the message for the rest of an archive whose first bytes are gone, as a broken download leaves it."""
    tail = bytes(data[-_TAIL:])
    if END_MAGIC not in tail or CENTRAL_MAGIC not in tail:
        return None
    first = bytes(data[:_SEARCHED]).find(LOCAL_MAGIC)
    place = f"; its first whole entry is at byte {first}" if first >= 0 else ""
    return f"the beginning of the archive is missing or overwritten, its directory is there{place}", ""


def _is_text_pickle(data: memoryview) -> bool:
    """Return whether bytes without a magic number are a pickle: whole, or one that has run code before it breaks."""
    if bytes(data[:1]) not in [bytes([byte]) for byte in _TEXT_OPCODES]:
        return False
    found = read_pickle(data[:_MAX_TEXT_PICKLE])
    return not found.problem or any(trust_of(name) is Trust.CODE for name in found.globals)


def _missing(path: Path) -> CheckpointError:
    if os.path.isfile(path / ".metadata") and not any((path / name).is_file() for name in (BEST_NAME, LAST_NAME)):
        return unreadable(
            path,
            "this is a directory of torch.distributed.checkpoint; its shards are no single file",
            f"python -m torch.distributed.checkpoint.format_utils dcp_to_torch {in_shell(path)} F.pt",
        )
    return missing_checkpoint(path)
