"""A short slice of `make fuzz`, on the operator as it is installed and the CRDs as they are."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterator

import pytest

from e2e import cluster
from e2e.deploy import NAMESPACE as OPERATOR_NAMESPACE
from e2e.deploy import OPERATOR
from e2e.fuzz.__main__ import fuzz, quota, unexpected

NAMESPACE = "e2e-fuzz"
OBJECTS, SEED = 100, 10
CANARY_SECONDS = 5.0
"""Beside engines that start on the same two cores; `make fuzz` holds it to 2."""


@pytest.fixture
def namespace(phasewise: None) -> Iterator[str]:
    try:
        quota(NAMESPACE)
        yield NAMESPACE
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s")


def test_no_object_takes_the_operator_down_or_keeps_it_from_another_service(namespace: str) -> None:
    began = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    run = asyncio.run(fuzz(OBJECTS, SEED, namespace))
    pods = (f"--selector=app.kubernetes.io/name={OPERATOR}", "--tail=-1", f"--since-time={began}")
    log = cluster.kubectl("-n", OPERATOR_NAMESPACE, "logs", *pods)
    print(f"{OBJECTS} objects; the canary was observed after {max(run.delays):.2f} s at most")
    assert (run.faults, unexpected(log)) == ([], [])
    assert max(run.delays) < CANARY_SECONDS
