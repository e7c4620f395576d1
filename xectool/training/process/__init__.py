"""The process that trains: its device, its memory and heap, the signals it gets, the progress it tells."""
