"""``python -m xectool`` runs the command line."""

from xectool.cli.app import main

if __name__ == "__main__":
    main()
