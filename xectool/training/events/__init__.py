"""What is settled about events before a step sees them: targets, masks, trivial answers, who is left out."""
