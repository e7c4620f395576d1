"""The command line: parses, calls the engine, renders; nothing is computed here."""
