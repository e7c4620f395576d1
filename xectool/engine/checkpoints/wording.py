"""What is said of a checkpoint as a whole: verdict, reasons, and the line to run next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xectool.checkpoint.inspection.facts import Inspected
from xectool.checkpoint.inspection.fitness import Fitness
from xectool.checkpoint.transfer import view_options
from xectool.config.serialize import starting_from
from xectool.errors import in_shell
from xectool.findings import Finding


def verdict(facts: Inspected, errors: Sequence[Finding]) -> str:
    """Return in a line what a checkpoint is, and its state where that is not sound."""
    layout = facts.layout
    what = f"{layout.kind} ({layout.origin})"
    if not errors:
        return f"a sound checkpoint: {what}"
    states = (
        (any(item.trust == "code" for item in facts.contents.unsafe), "dangerous"),
        (bool(facts.contents.unsafe) and errors[0].code == "K03", "not safe to load"),
        (not facts.is_intact, "damaged"),
        (bool(facts.nonfinite), "not finite"),
        (errors[0].code == "XT-PLUGIN", "not usable here"),
    )
    return f"{next((name for holds, name in states if holds), 'not usable as it is')}: {what}"


def reasons(fit: Sequence[Fitness], errors: Sequence[Finding]) -> tuple[str, ...]:
    """Return why: the first errors, or what it is fit for."""
    if errors:
        return tuple(f"{found.problem} ({found.where})" if found.where else found.problem for found in errors[:5])
    return tuple(f"{item.action}: {'yes' if item.possible else 'no'}, {item.why}" for item in fit)


def next_line(path: Path, facts: Inspected, fit: Sequence[Fitness], errors: Sequence[Finding], done: int) -> str:
    """Return the line to run next.

    Args:
        path: The checkpoint.
        facts: What is in it.
        fit: What it is fit for.
        errors: What is wrong with it.
        done: Epochs that are finished, 0 unless it is all of them.
    """
    name = in_shell(path)
    if errors:
        return errors[0].fix
    possible = {item.action for item in fit if item.possible}
    if "resume" in possible:
        return f"xectool train CONFIG --resume {name}" + (f" --set training.epochs={2 * done}" if done else "")
    if "predict" in possible:
        return f"xectool predict {name} DATA.root"
    if "fine-tune" in possible:
        return fine_tuning(path, facts.layout.config)
    if facts.contents.format == "torch-export":
        return f"xectool export {in_shell(facts.layout.meta.get('xectool.checkpoint', 'CKPT'))} --to onnx"
    if facts.layout.is_ours and facts.layout.config is None:
        return f"xectool inspect-ckpt {name} --extract encoder --config CONFIG --output encoder.pt"
    return f"xectool inspect-ckpt {name} --tensors"


def fine_tuning(path: Path | str, config: Mapping[str, Any] | None) -> str:
    """Return the command that trains from the weights of a file, with what its encoder needs of a configuration."""
    return " ".join(filter(None, (f"xectool train CONFIG {starting_from(path)}", view_options(config))))
