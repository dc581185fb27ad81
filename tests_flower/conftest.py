"""Fixtures of the tests that need Flower: `make test-flower` runs them."""

from pathlib import Path

import pytest
from flwr.supercore.task_identity import TaskIdentity

from in_process import Federation, write_files


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    """Four sites with numbers, and an outcome."""
    # Flower sets these when it starts a task.
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    return Federation(tmp_path, write_files(tmp_path))
