"""What the tests of signals share: a service of one router and one decode pod."""

from __future__ import annotations

import pytest
from tests.operator.scaling.signals.exposition import Engine, Router
from tests.operator.scaling.signals.service import D, R, Service, pod


@pytest.fixture
def router() -> Router:
    return Router()


@pytest.fixture
def service(router: Router) -> Service:
    return Service({pod(R, "r1"): router, pod(D, "d1"): Engine()})
