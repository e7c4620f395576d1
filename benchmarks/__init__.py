"""Speed as ratios against what an ordinary user would write, pair by pair in one run."""
