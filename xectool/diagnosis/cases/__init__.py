"""What went wrong in a run, each occurrence with all that is known about it; rules weigh these."""
