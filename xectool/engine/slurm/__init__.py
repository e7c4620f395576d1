"""What is asked of SLURM, and what its job runs."""
