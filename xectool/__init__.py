"""xectool trains neural networks on MEG II liquid-xenon calorimeter data and says what went wrong when it does."""

__version__ = "0.1.0"
