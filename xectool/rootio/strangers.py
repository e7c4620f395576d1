"""What a file is that was given in place of a ROOT file with events."""

from __future__ import annotations

import re
import shlex
from typing import Any

from xectool.errors import DataFileError


def not_a_chain(path: str, tree_name: str, key: Any) -> DataFileError:
    """Return the error for a chain, which names files and holds no event, with the files it names."""
    chunk, cursor = key.get_uncompressed_chunk_cursor()
    stored = bytes(chunk.get(cursor.index, cursor.index + key.data_uncompressed_bytes, cursor, {}))
    # a text is its length, then the characters
    texts = (stored[at + 1 : at + 1 + size] for at, size in enumerate(stored) if at + 1 + size <= len(stored))
    files = dict.fromkeys(text.decode() for text in texts if re.fullmatch(rb"[\x20-\x7e]+\.root", text))
    named = " ".join(shlex.quote(name) for name in files)
    return DataFileError(
        f"'{tree_name}' of '{path}' is a chain (TChain): it names files ({len(files)}) and holds no event itself",
        where=f"{path}:{tree_name}",
        fix=f"give its files instead: {named}" if files else "give the files it was made of instead",
        code="XT-DATA-TREE",
    )


def what_it_is(head: bytes) -> str:
    """Return what the first bytes of a file that is no ROOT file tell, as a clause."""
    if head.lstrip().lower().startswith((b"<!doc", b"<htm", b"<?xml")):
        return "it is a web page (a download that needs a login?) or XML"
    if head.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer; the data were never fetched (git lfs pull)"
    if head.startswith(b"\x89HDF"):
        return "it is an HDF5 file"
    if not head.strip(b"\0"):
        return "it starts with zero bytes (an interrupted copy)"
    if all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head):
        return f"it is text, starting with {head[:24].decode('ascii')!r}"
    return f"its first four bytes are {head[:4]!r}, not b'root'"
