"""What brings a line to paste to the place where a run lies now: it may have been copied, moved or renamed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from xectool.config.serialize import inline_yaml
from xectool.diagnosis.evidence.files import setting
from xectool.errors import in_shell

_MOST_LETTERS: Final = 100
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9._+-]+")


def plain_name(run_dir: Path) -> str:
    """Return the name of a run directory, or the nearest that can be the name of a run."""
    return _NOT_IN_A_NAME.sub("_", run_dir.resolve().name)[:_MOST_LETTERS].lstrip("._+-") or "run"


def beside(run_dir: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the setting that puts other runs beside this one, as a shell word; none where they already go there."""
    root, parent = setting(config, "checkpoint.save_dir"), run_dir.resolve().parent
    if not isinstance(root, str) or Path(root).expanduser().resolve() == parent:
        return ()
    return (in_shell(f"checkpoint.save_dir={inline_yaml(str(parent))}"),)


def inside(run_dir: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings with which a resumed run goes on in its own directory, as shell words."""
    named, own = setting(config, "mlflow.run_name"), run_dir.resolve().name
    if not named:
        return ()
    kept = () if named == own else (f"mlflow.run_name={own if own == plain_name(run_dir) else 'null'}",)
    return (*beside(run_dir, config), *kept)
