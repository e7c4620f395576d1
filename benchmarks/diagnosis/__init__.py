"""How well ``diagnose run`` names what was done to real trainings; see docs/benchmarks.md."""
