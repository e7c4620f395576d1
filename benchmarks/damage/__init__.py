"""Damaged copies of good files, and what the commands a user would ask say of them."""
