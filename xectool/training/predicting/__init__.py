"""Passes over events that write files: predictions, filled sensors, comparisons; memory does not grow with them."""
