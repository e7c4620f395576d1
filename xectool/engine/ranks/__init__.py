"""The ranks of a launched job, seen from their launcher."""
