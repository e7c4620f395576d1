"""One class a cause: what speaks for it in the evidence of a run, and the line that cures it."""
