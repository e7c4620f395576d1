"""The trainings of this room have shallow networks."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _few_blocks(room_of_trainings: None) -> None:
    """One block a stage: forty of a hundred seconds less."""
