"""A step that goes wrong: find out why, keep the evidence, leave out what is bad, go back to a good state."""
