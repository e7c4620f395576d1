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

_OF_VALUES = frozenset(("DAT-07", "DAT-08", "DAT-14", "DAT-16", "DAT-17", "DAT-25"))

VALUE_CHECKS: tuple[Rule[DataFacts], ...] = tuple(rule for rule in DATA_CHECKS if rule.code in _OF_VALUES)
"""Checks of what stands in the files, whatever a configuration makes of it: also asked of a sample to compare with."""
