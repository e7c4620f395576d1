"""What the schema alone cannot refuse: rules on combinations of keys, files and machine."""
