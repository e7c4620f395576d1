"""The one training loop: build the parts, step, guard, evaluate, save, and write predictions."""
