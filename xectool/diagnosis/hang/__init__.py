"""Who waits for whom: the kernel's view of every process of a run, their stacks, and the verdict."""
