"""What a file is that was given in place of a ROOT file with events."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Any, Final

from xectool.config.inputs import input_name, is_list
from xectool.errors import DataFileError, in_shell

_MAGICS: Final = (
    (b"\x89HDF", "an HDF5 file"),
    (b"\x1f\x8b", "packed with gzip: gunzip unpacks it"),
    (b"\xfd7zXZ\0", "packed with xz: unxz unpacks it"),
    (b"BZh", "packed with bzip2: bunzip2 unpacks it"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd: unzstd unpacks it"),
    (b"PK\x03\x04", "a zip archive: of files (unzip), or of NumPy or PyTorch"),
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"SIMPLE  =", "a FITS file"),
    (b"\x7fELF", "a program"),
)
_UNPACK: Final = (
    (b"\x1f\x8b", "gunzip"),
    (b"\xfd7zXZ\0", "unxz"),
    (b"BZh", "bunzip2"),
    (b"\x28\xb5\x2f\xfd", "unzstd"),
)
_TEXT_BYTES: Final = 4096
COPY_AGAIN: Final = "copy the file again and compare its checksum, or take it out of the list"
_LFS: Final = b"version https://git-lfs"
_OLD_METHOD: Final = "unsupported compression algorithm: b'CS'"


def reason_of(error: BaseException) -> str:
    """Return the first line of an error, or its kind where it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def unreadable(path: str, tree_name: str, error: BaseException) -> DataFileError:
    """Return the error for a local file of which the tree cannot be read: most are damaged, one compression is old."""
    if (reason := reason_of(error)).startswith(_OLD_METHOD):
        return DataFileError(
            f"'{tree_name}' of '{path}' is compressed as ROOT did before its version 3 (setting 3xx), which ROOT still "
            "reads and uproot does not",
            where=input_name(path, tree_name),
            fix=f"hadd -f101 NEW.root {in_shell(path)}",
            code="XT-DATA-TREE",
        )
    return DataFileError(
        f"'{path}' is damaged or of unknown kind: tree '{tree_name}' cannot be read ({type(error).__name__}: {reason})",
        where=input_name(path, tree_name),
        fix=COPY_AGAIN,
        code="XT-DATA-DAMAGED",
    )


def require_released(path: str, tree_name: str, kind: str) -> None:
    """Refuse a tree that cannot be read where its class says why: a format that ROOT changed before its release.

    Raises:
        DataFileError: It is of such a class.
    """
    if kind.startswith("ROOT::Experimental::"):
        raise DataFileError(
            f"'{tree_name}' of '{path}' is a {kind}: of a ROOT before 6.34, in a format that was changed until its "
            "release, which uproot does not read",
            where=input_name(path, tree_name),
            fix="write it again: as a TTree, or as an RNTuple with ROOT 6.34 or newer",
            code="XT-DATA-TREE",
        )


def not_a_chain(path: str, tree_name: str, key: Any) -> DataFileError:
    """Return the error for a chain, which names files and holds no event, with the files it names."""
    chunk, cursor = key.get_uncompressed_chunk_cursor()
    stored = bytes(chunk.get(cursor.index, cursor.index + key.data_uncompressed_bytes, cursor, {}))
    # a text is its length, then the characters
    texts = (stored[at + 1 : at + 1 + size] for at, size in enumerate(stored) if at + 1 + size <= len(stored))
    files = dict.fromkeys(text.decode() for text in texts if re.fullmatch(rb"[\x20-\x7e]+\.root", text))
    named = " ".join(in_shell(name) for name in files)
    return DataFileError(
        f"'{tree_name}' of '{path}' is a chain (TChain): it names files ({len(files)}) and holds no event itself",
        where=input_name(path, tree_name),
        fix=f"give its files instead: {named}" if files else "give the files it was made of instead",
        code="XT-DATA-TREE",
    )


def remedy(path: str, head: bytes) -> str:
    """Return what to do about a local file that is no ROOT file, with a line to paste where there is one."""
    if unpack := next((command for magic, command in _UNPACK if head.startswith(magic)), ""):
        return f"{unpack} < {in_shell(path)} > NEW.root"  # by its name it takes none that ends in .root
    if head.startswith(_LFS):
        return "git lfs pull"
    return COPY_AGAIN


def is_root(head: bytes) -> bool:
    """Return whether the first bytes are of a ROOT file; a list of ``root://`` urls begins alike."""
    return head == b"root" or (head.startswith(b"root") and not _text(head))


def is_list_file(path: str) -> bool:
    """Return whether a local file is a list of inputs, by its first lines."""
    with open(path, "rb") as stream:
        head = stream.read(_TEXT_BYTES)
    lines = _text(head).splitlines()
    return is_list(lines[:-1] if len(head) == _TEXT_BYTES else lines, Path(path).parent)  # the last may be cut


def _text(head: bytes) -> str:
    """Return the first bytes of a text, of which the last character may be cut; of no text nothing."""
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    except UnicodeDecodeError:
        return ""
    return text if all(character.isprintable() or character in "\t\r\n" for character in text) else ""


def what_it_is(head: bytes) -> str:
    """Return what the first bytes of a file that is no ROOT file tell, as a clause."""
    if head.lstrip().lower().startswith((b"<!doc", b"<htm", b"<?xml")):
        return "it is a web page (a download that needs a login?) or XML"
    if head.startswith(_LFS):
        return "it is a Git LFS pointer; the data were never fetched (git lfs pull)"
    known = next((what for magic, what in _MAGICS if head.startswith(magic)), "")
    if known:
        return f"it is {known}"
    if not head.strip(b"\0"):
        return "it starts with zero bytes (an interrupted copy)"
    if text := _text(head):
        return f"it is text, starting with {text[:24]!r}"
    return f"its first four bytes are {head[:4]!r}, not b'root'"
