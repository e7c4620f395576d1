"""What experiments are made with: a training without a run directory, one step tried, and eyes on every operation."""
