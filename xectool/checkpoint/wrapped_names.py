"""What wrappers such as ``torch.compile`` put in front of names of tensors or inside them."""

from __future__ import annotations

from collections.abc import Iterable

WRAPPERS = ("module.", "_orig_mod.")
INNER_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""What wrappers put inside names; ``module`` may be a module's own name there."""


def bare_name(name: str) -> str:
    """Return a tensor's name without what wrappers put in front of it or inside it."""
    while name.startswith(WRAPPERS + INNER_WRAPPERS):
        name = name.split(".", 1)[1]
    for wrapper in INNER_WRAPPERS:
        name = name.replace(f".{wrapper}", ".")
    return name


def wrappers_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return what wrappers put in front of names or inside them, the outermost first."""
    found: dict[str, None] = {}
    for name in names:
        rest = name
        while wrapper := next((w for w in WRAPPERS + INNER_WRAPPERS if rest.startswith(w)), None):
            rest = rest.removeprefix(wrapper)
            found[wrapper] = None
        found |= {wrapper: None for wrapper in INNER_WRAPPERS if f".{wrapper}" in rest}
    return tuple(found)
