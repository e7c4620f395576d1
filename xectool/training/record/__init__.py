"""What a run says of itself while it goes on: its place, its facts, its steps, its heartbeat."""
