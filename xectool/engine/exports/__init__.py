"""Exported files: what they start from, what they are compared on, how they are loaded."""
