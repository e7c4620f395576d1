"""An honest toy of photons in the liquid-xenon calorimeter; every number stands in :mod:`.physics`."""
