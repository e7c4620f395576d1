"""Whether the packages a format needs are installed."""

from __future__ import annotations

import importlib.util

from xectool.errors import UsageError


def require(*packages: str, what: str) -> None:
    """Refuse to go on without packages.

    Args:
        packages: Names to import and to install.
        what: What needs them.

    Raises:
        UsageError: At least one is missing; the fix installs all of those.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{what} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            where="this Python environment",
            fix=f"pip install {' '.join(missing)}",
            code="X-18",
        )
