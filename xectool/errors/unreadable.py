"""What Python's own reader of archives raises on bytes that are not what was written, beside what it documents.

Its headers are unpacked without looking at their length (``struct.error``, ``EOFError``), their flags are believed
(``NotImplementedError``, ``RuntimeError``), what was compressed fails first (``zlib.error``): one of thirty damages.
"""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib
from typing import Final

ARCHIVE_ERRORS: Final = (
    zipfile.BadZipFile, zipfile.LargeZipFile, struct.error, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError,
    LookupError, OverflowError, RuntimeError,
)  # fmt: skip
