"""Experiments with ``torch.compile``: graphs, breaks, time and memory of each mode."""
