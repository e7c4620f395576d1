"""What brings a line to paste to the place where a run lies now: it may have been copied, moved or renamed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xectool.config.serialize import inline_yaml
from xectool.diagnosis.evidence.files import setting
from xectool.errors import in_shell
from xectool.errors.run_names import RUN_NAME_PATTERN


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
    kept = () if named == own else (f"mlflow.run_name={own if RUN_NAME_PATTERN.match(own) else 'null'}",)
    return (*beside(run_dir, config), *kept)
