"""Which variables matter, and what of them may be shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

HIDDEN: Final = "(hidden)"
_SECRET: Final = re.compile(r"TOKEN|KEY|PASS|SECRET|CREDENTIAL|AUTH|COOKIE|PRIVATE", re.IGNORECASE)
_USER_IN_URL: Final = re.compile(r"(?<=://)[^/@\s]+@")
_RELEVANT: Final = (
    "CUDA", "GLOO_", "GOMP_", "HIP_", "HSA_", "KMP_", "MALLOC_", "MIOPEN_", "MKL_", "MLFLOW_", "NCCL_", "NVIDIA_",
    "OMP_", "OPENBLAS_", "PYTORCH_", "ROCR_", "SLURM_", "TORCH", "TP_", "TRITON_", "UCX_", "XECTOOL_",
)  # fmt: skip
_EXACT: Final = frozenset({
    "CC", "CXX", "GLIBC_TUNABLES", "HOSTNAME", "LD_PRELOAD", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "RANK", "TMPDIR", "WORLD_SIZE", "XDG_CACHE_HOME",
})  # fmt: skip


def shown(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that matter for training, sorted; secrets keep their name and lose their value."""
    names = sorted(name for name in environment if name in _EXACT or name.startswith(_RELEVANT))
    return {name: HIDDEN if _SECRET.search(name) else without_user(environment[name]) for name in names}


def without_user(text: str) -> str:
    """Return a text without the user and password of addresses in it.

    >>> without_user("https://me:secret@host/path"), without_user("sqlite:////a/b.db")
    ('https://(hidden)@host/path', 'sqlite:////a/b.db')
    """
    return _USER_IN_URL.sub(f"{HIDDEN}@", text)
