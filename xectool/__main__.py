"""``xectool`` and ``python -m xectool``: signals are heard first, then the command line is loaded and run."""

from xectool.cli.signals import note_early


def main() -> None:
    """Run the command line; the exit code follows the documented table."""
    note_early()
    from xectool.cli import app

    app.main()


if __name__ == "__main__":
    main()
