"""From the record of a run to its causes: evidence, rules over it, and their order; free of torch."""
