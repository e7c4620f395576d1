"""What a file is that holds no weights, named from its first bytes; ``FILE`` in a fix stands for its path."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from xectool.errors import in_shell

GIVE_ANOTHER: Final = "give a checkpoint (.pt, .pth, .safetensors, .onnx)"
_NOT_WEIGHTS: Final = "this is {what}, not a checkpoint"
_MAGICS: Final = (
    (b"version https://git-lfs.github.com/spec/", "a git-LFS pointer", "git lfs pull"),
    (b"root\x00", "a ROOT file", "xectool check-data FILE"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file (Keras or TensorFlow)", ""),
    (b"\x1f\x8b", "a gzip file", "gunzip < FILE > NEW"),
    (b"BZh", "a bzip2 file", "bunzip2 < FILE > NEW"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file", "unzstd < FILE > NEW"),
    (b"7z\xbc\xaf'\x1c", "a 7-Zip archive", "7z x FILE"),
    (b"Rar!", "a RAR archive", "unrar x FILE"),
    (b"\x93NUMPY", "a NumPy array", ""),
    (b"GGUF", "a GGUF file of a language model", ""),
    (b"SQLite format 3\x00", "an SQLite database", ""),
    (b"PAR1", "a Parquet file", ""),
    (b"\x89PNG", "a PNG image", ""),
    (b"\xff\xd8\xff", "a JPEG image", ""),
    (b"ARROW1", "an Arrow or Feather file", ""),
    (b"RIFF", "a sound, film or image (RIFF)", ""),
    (b"\x78\x01", "zlib-compressed data, as joblib writes them", ""),
    (b"\x78\x5e", "zlib-compressed data, as joblib writes them", ""),
    (b"\x78\x9c", "zlib-compressed data, as joblib writes them", ""),
    (b"\x78\xda", "zlib-compressed data, as joblib writes them", ""),
    (b"\xff\xfe", "a text file in UTF-16", ""),
    (b"\xfe\xff", "a text file in UTF-16", ""),
    (b"%PDF", "a PDF document", ""),
    (b"\x7fELF", "a program or library", ""),
    (b"#!", "a script", ""),
)
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_JSON = re.compile(r'\s*(\{\s*["}]|\[\s*(["{\[\]]|-?\d|true|false|null))')
_TFLITE: Final = b"TFL3"
_PAGE = re.compile(rb"^\s*(<!doctype html|<html|<head|<\?xml[^>]*>\s*<(!doctype )?html)", re.IGNORECASE)
_DOWNLOAD_FIX: Final = "download it again: a web page came instead of the file (log in, or use the direct link)"
_ARCHIVES: Final[tuple[tuple[str, Callable[[Sequence[str]], bool]], ...]] = (
    ("a NumPy archive (.npz)", lambda names: all(name.endswith(".npy") for name in names)),
    ("an office document", lambda names: "[Content_Types].xml" in names),
    ("a Java archive", lambda names: "META-INF/MANIFEST.MF" in names),
    ("a Python wheel", lambda names: any(name.endswith(".dist-info/METADATA") for name in names)),
    ("a Keras model", lambda names: any(name.endswith(".weights.h5") for name in names)),
    ("a TensorFlow model", lambda names: any(name.endswith("saved_model.pb") for name in names)),
    ("an Open Document", lambda names: "META-INF/manifest.xml" in names),
)
_HOLD_CHECKPOINTS: Final = (".pt", ".pth", ".ckpt", ".safetensors", ".onnx", ".bin")


def archive_of(names: Sequence[str]) -> tuple[str, str]:
    """Return the message and the fix for a zip archive that torch did not write."""
    what = next((title for title, matches in _ARCHIVES if names and matches(names)), "a zip archive of something else")
    shown = ", ".join(sorted(names)[:4]) or "nothing"
    inside = next((name for name in names if name.lower().endswith(_HOLD_CHECKPOINTS)), None)
    missing = any(name.rsplit("/", 1)[0].endswith("/data") and name.rsplit("/")[-1].isdigit() for name in names)
    if missing:
        return "the archive has tensors but no data.pkl, which says what they are", ""
    fix = f"unzip FILE {in_shell(inside)}" if inside else GIVE_ANOTHER
    return f"{_NOT_WEIGHTS.format(what=what)}; it holds {shown}", fix


def stranger(head: bytes, size: int) -> tuple[str, str]:
    """Return the message and the fix for a file that no reader of checkpoints takes; no fix where it is damaged.

    Args:
        head: Its first bytes.
        size: Its size in bytes.
    """
    fix = GIVE_ANOTHER
    head = head.removeprefix(_BYTE_ORDER_MARK)
    if head[4:8] == _TFLITE:
        return _NOT_WEIGHTS.format(what="a TensorFlow Lite model"), fix
    for magic, what, repair in _MAGICS:
        if head.startswith(magic):
            return _NOT_WEIGHTS.format(what=what), repair or fix
    if not head.strip(b"\0"):
        return f"the file begins with {len(head)} zero bytes: it was reserved on the disk and never written", ""
    if _PAGE.match(head):
        return _NOT_WEIGHTS.format(what="an HTML page"), _DOWNLOAD_FIX
    text = _text(head)
    if text is not None:
        kind = "a JSON file" if _JSON.match(text) else "a text file"
        first = text.strip().splitlines()[0][:60] if text.strip() else ""
        return f"{_NOT_WEIGHTS.format(what=kind)}; it begins with '{first}'", fix
    return f"the file does not start like a checkpoint (first bytes {head[:8]!r}, {size} bytes in all)", ""


_SHORTEST: Final = 3
"""Bytes of a text; one or two letters are what is left of an archive."""


def _text(head: bytes) -> str | None:
    try:
        text = head.decode("utf-8", "strict")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:
            return None
        text = head[: error.start].decode("utf-8")
    if len(head) < _SHORTEST:
        return None
    control = sum(ch < " " and ch not in "\t\r\n\f" for ch in text)
    return text if not control else None
