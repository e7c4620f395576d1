"""Checkpoints: one versioned format, saved atomically, loaded without executing anything, verified by digest."""
