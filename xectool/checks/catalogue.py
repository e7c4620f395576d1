"""All checks, in the order of their numbers."""

from __future__ import annotations

from xectool.checks.data_facts import DataFacts
from xectool.checks.file_rules import FILE_RULES
from xectool.checks.sample_rules import SAMPLE_RULES
from xectool.checks.target_rules import TARGET_RULES
from xectool.checks.use_rules import USE_RULES
from xectool.checks.value_rules import VALUE_RULES
from xectool.rules import Rule

DATA_CHECKS: tuple[Rule[DataFacts], ...] = tuple(
    sorted((*FILE_RULES, *VALUE_RULES, *TARGET_RULES, *SAMPLE_RULES, *USE_RULES), key=lambda rule: rule.code)
)
