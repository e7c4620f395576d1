"""Which names a pickle may ask for, and what the others could do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import torch

from xectool.checkpoint.inspection.symbols import Global

_SAFE_NAMES: Final = frozenset({
    "collections.OrderedDict", "collections.Counter", "builtins.bytearray", "builtins.complex", "builtins.set",
    "_codecs.encode",
    "torch.Size", "torch.device", "torch.Tensor", "torch.nn.parameter.Parameter", "torch.serialization._get_layout",
    "torch.storage.TypedStorage", "torch.storage.UntypedStorage", "torch._tensor._rebuild_from_type_v2",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor", "torch._utils._rebuild_device_tensor_from_numpy",
    "torch._utils._rebuild_meta_tensor_no_storage", "torch._utils._rebuild_nested_tensor",
    "torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state",
    "torch._utils._rebuild_qtensor", "torch._utils._rebuild_sparse_tensor", "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3", "torch._utils._rebuild_wrapper_subclass",
    "torch.per_channel_affine", "torch.per_channel_affine_float_qparams", "torch.per_channel_symmetric",
    "torch.per_tensor_affine", "torch.per_tensor_symmetric",
})  # fmt: skip
_STORAGE_MODULES: Final = frozenset({"torch", "torch.cuda", "torch.sparse", "torch.cuda.sparse"})
_INERT_NAMES: Final = frozenset({
    "argparse.Namespace", "collections.defaultdict", "collections.deque", "builtins.dict", "builtins.list",
    "builtins.tuple", "builtins.frozenset", "builtins.int", "builtins.float", "builtins.str", "builtins.bool",
    "builtins.slice", "builtins.range", "builtins.bytes", "builtins.object",
    "numpy.dtype", "numpy.ndarray", "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar", "numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct",
    "numpy.random._pickle.__randomstate_ctor", "pathlib.PosixPath", "pathlib.WindowsPath", "pathlib.PurePosixPath",
    "pathlib.Path", "pathlib._local.PosixPath", "pathlib._local.WindowsPath", "datetime.datetime", "datetime.date",
    "datetime.timedelta", "datetime.timezone", "decimal.Decimal", "fractions.Fraction", "uuid.UUID", "enum.Enum",
    "types.SimpleNamespace",
})  # fmt: skip
_RUNS_CODE: Final = (
    "os", "posix", "nt", "subprocess", "sys", "importlib", "runpy", "code", "codeop", "ctypes", "socket", "shutil",
    "pty", "commands", "webbrowser", "multiprocessing", "threading", "asyncio", "pickle", "_pickle", "cPickle", "dill",
    "cloudpickle", "joblib", "marshal", "operator", "_operator", "functools", "pydoc", "timeit", "trace", "pdb", "bdb",
    "cProfile", "profile", "urllib", "http", "requests", "tempfile", "signal", "platform", "getpass", "smtplib",
    "ftplib", "telnetlib", "xmlrpc", "zipimport", "pkgutil", "pip", "ensurepip", "venv", "distutils", "setuptools",
    "inspect", "gc", "types", "idlelib", "lib2to3", "doctest", "unittest", "builtins",
    "(computed)", "torch.hub", "torch.utils.cpp_extension", "torch.jit", "torch.serialization", "torch.load",
    "torch.storage", "io", "numpy.f2py", "numpy.testing", "numpy.distutils", "numpy.load",
    "numpy.lib.npyio", "numpy.lib._npyio_impl", "sqlite3", "linecache", "fileinput",
)  # fmt: skip


class Trust(Enum):
    """What loading a name means."""

    SAFE = "safe"  # torch.load(..., weights_only=True) takes it
    INERT = "inert"  # a plain value of another library; the safe loader refuses it, it cannot do harm
    CLASS = "class"  # code of another package runs when it is loaded
    CODE = "code"  # made to run commands, or to reach what does


@dataclass(frozen=True)
class UnsafeGlobal:
    """A name that the safe loader refuses.

    Attributes:
        name: Module and attribute.
        trust: ``inert``, ``class`` or ``code``.
        entry: Entry of the archive, empty for a plain file.
        offset: Byte of the opcode in that entry.
        file_offset: Byte of the opcode in the file; None inside compressed data.
    """

    name: str
    trust: str
    entry: str
    offset: int
    file_offset: int | None

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        inside = f"byte {self.offset} of {self.entry}" if self.entry else f"byte {self.offset}"
        return inside if self.file_offset in (None, self.offset) else f"{inside} (byte {self.file_offset} of the file)"


def trust_of(found: Global) -> Trust:
    """Return what loading a name means."""
    name = found.dotted.replace("__builtin__.", "builtins.")  # as Python 2 wrote it
    if name in _SAFE_NAMES or (found.module in _STORAGE_MODULES and _is_element_type(found)):
        return Trust.SAFE
    if name in _INERT_NAMES:
        return Trust.INERT
    runs_code = any(name == module or name.startswith(module + ".") for module in _RUNS_CODE)
    return Trust.CODE if runs_code else Trust.CLASS


def _is_element_type(found: Global) -> bool:
    if found.name.endswith(("Storage", "Tensor")):
        return found.name.removesuffix("Storage").removesuffix("Tensor").isalnum()
    return found.module == "torch" and isinstance(getattr(torch, found.name, None), torch.dtype)


def unsafe_globals(
    found: Iterable[Global], entry: str, base: int | None, allowed_modules: tuple[str, ...] = ()
) -> list[UnsafeGlobal]:
    """Return the names the safe loader refuses, each occurrence that is the first of its name.

    Args:
        found: All names of a pickle.
        entry: Entry of the archive.
        base: Byte of the file the pickle's bytes begin at; None inside compressed data.
        allowed_modules: Modules that mean nothing to Python, such as those of TorchScript.
    """
    first: dict[str, UnsafeGlobal] = {}
    for item in found:
        trust = trust_of(item)
        if trust is Trust.SAFE or item.module.startswith(allowed_modules or ("\0",)) or item.dotted in first:
            continue
        place = None if base is None else base + item.offset
        first[item.dotted] = UnsafeGlobal(item.dotted, trust.value, entry, item.offset, place)
    return list(first.values())
