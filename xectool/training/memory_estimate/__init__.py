"""Memory of a training step before anything is allocated: the real step on tensors without data, in a fresh process.

The parent's side (`child`, `recording`, `request`) does not load torch; everything else runs in the child.
"""
