"""How long a signal of the keyboard that comes again is the same press; to be had before anything heavy is loaded."""

from typing import Final

SAME_PRESS_S: Final = 1.0
"""Seconds: `timeout -s INT` sends its signal to the command, and then to its group, which the command is in."""
