"""Numbers of a run for one question: loss, gradients, memory, status."""
