"""Several processes on one run: what the loop asks of the other ranks, and `torch.distributed` behind it."""
