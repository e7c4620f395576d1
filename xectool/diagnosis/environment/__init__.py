"""The machine a run is on: facts gathered once, and rules that say what of them will cost a run."""

from xectool.diagnosis.environment.facts import EnvironmentFacts
from xectool.diagnosis.environment.gather import Reach, gather
from xectool.diagnosis.environment.rules import ENVIRONMENT_RULES

__all__ = ["ENVIRONMENT_RULES", "EnvironmentFacts", "Reach", "gather"]
