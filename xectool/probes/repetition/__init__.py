"""Steps taken again: replay of a recorded one, and two runs compared bit for bit."""
