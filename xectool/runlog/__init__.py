"""The flight recorder: what a run did, written so that no kill loses it and any process can read it."""
