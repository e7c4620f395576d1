"""``xectool`` and ``python -m xectool``: signals are heard first, then the command line is loaded and run."""

from xectool.cli.signals import note_early
from xectool.rootio.lean import leave_out_pyarrow


def main() -> None:
    """Run the command line; the exit code follows the documented table."""
    note_early()
    leave_out_pyarrow()
    from xectool.cli import app

    app.main()


if __name__ == "__main__":
    main()
