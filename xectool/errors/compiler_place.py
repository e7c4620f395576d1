"""What to say where torch's compiler cannot keep its files."""

from __future__ import annotations

import os
import tempfile

from xectool.errors import DiskError, in_shell

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def no_compiler_place(error: OSError) -> DiskError:
    """Return the error, with a line that gives the compiler another place."""
    problem = f"torch cannot write where its compiler keeps files: {error.strerror or error}"
    # torch sets the variable to its default before it makes the directory
    where = f"{VARIABLE}: {os.environ.get(VARIABLE, 'not set')}"
    try:
        usable = tempfile.gettempdir()
    except FileNotFoundError:
        usable = os.curdir
    return DiskError(problem, where=where, fix=f'export {VARIABLE}="$(mktemp -d -p {in_shell(usable)})"')
