"""A memory-mapped copy of the events that training reads, one file a source file, checked against its source."""
