"""The state of a run kept and taken up again: checkpoints, the last good states, resume."""
