"""What several integration tests need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.execution_api import ExecutionApi


@pytest.fixture
def api() -> Iterator[ExecutionApi]:
    with ExecutionApi() as service:
        yield service
