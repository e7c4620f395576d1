"""What the commands say about a checkpoint: tables, parts, fitness, contract."""
