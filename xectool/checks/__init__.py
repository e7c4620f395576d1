"""Checks of data files: what they hold, whether they are whole, and whether they can be trained on; free of torch."""
