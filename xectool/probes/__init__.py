"""Experiments that need a model or data: what goes non-finite first, a recorded step once more, where time goes."""
