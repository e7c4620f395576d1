"""Real runs in trouble: whether the commands say what happened to them, and how soon."""
