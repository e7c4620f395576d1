"""What moves the weights: optimizer, rate schedule, averages, and the blocks that are reported."""
