"""All rules on a machine, in the order they are told."""

from __future__ import annotations

from xectool.diagnosis.environment.facts import EnvironmentFacts
from xectool.diagnosis.environment.machine_rules import MACHINE_RULES
from xectool.diagnosis.environment.storage_rules import STORAGE_RULES
from xectool.diagnosis.environment.variable_rules import VARIABLE_RULES
from xectool.rules import Rule

ENVIRONMENT_RULES: tuple[Rule[EnvironmentFacts], ...] = (*MACHINE_RULES, *STORAGE_RULES, *VARIABLE_RULES)
