"""Plots of runs and predictions: resolutions, learning curves and event displays."""
