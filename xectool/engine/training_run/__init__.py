"""One training from its checked configuration to what it leaves behind."""
