"""Experiments with several processes: whether they find each other, and what they agree on."""
