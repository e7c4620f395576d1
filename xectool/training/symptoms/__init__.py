"""How a fault shows: in the numbers of a step, and in what torch says."""
