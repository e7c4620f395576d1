"""The search for what is not finite: events, sensors, numbers, weights, modules."""
