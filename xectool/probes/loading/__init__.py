"""Experiments with the loader: its stages, and races of its settings."""
