"""What a run left on disk, read in one pass and in bounded memory."""
