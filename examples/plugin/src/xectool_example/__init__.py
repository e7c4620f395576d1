"""A check, a rule and a kind of training for xectool."""
