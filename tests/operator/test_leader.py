"""The operator's life: a term ends when anything that runs in it ends, and another begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from tests.operator.conftest import until
from tests.operator.test_lease import LeaseServer

from phasewise_operator import leader
from phasewise_operator.kinds import INFERENCE_SERVICE, Manifest
from phasewise_operator.kube import Kube, KubeError, NotLeadingError
from phasewise_operator.leader import Operator, first_to_end
from phasewise_operator.metrics import Metrics
from phasewise_operator.settings import Settings


class Server(LeaseServer):
    """Has the Lease; `crd_after`: how many questions for the CRD are answered with 404."""

    crd_after = 0

    def gated(self, may_write: Callable[[], bool]) -> Server:
        return self

    async def call(self, method: str, path: str, **more: Any) -> Manifest:
        if path != f"/apis/{INFERENCE_SERVICE.api_version}":
            return await super().call(method, path, **more)
        self.crd_after -= 1
        if self.crd_after >= 0:
            raise KubeError(404, "NotFound", path)
        return {"resources": [{"name": INFERENCE_SERVICE.plural}]}


@dataclass(frozen=True)
class Terms(Operator):
    """What a leader does is left out: the first term ends with an error at once, the next ones last."""

    begun: list[float] = field(default_factory=list[float])

    async def _act(self, kube: Kube) -> None:
        self.begun.append(self.metrics.registry.get_sample_value("phasewise_operator_leading") or 0)
        if len(self.begun) == 1:
            raise KubeError(410, "Expired", "the watch has ended")
        await asyncio.Event().wait()


def terms(server: Server, **settings: Any) -> Terms:
    return Terms(
        Settings(identity="a", retry_seconds=0.001, **settings), cast("Kube", server), Metrics(), asyncio.Event()
    )


async def test_a_term_that_ends_is_followed_by_another_and_the_lease_is_given_up_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader, "PAUSE_SECONDS", 0.001)
    server = Server()
    operator = terms(server)
    running = asyncio.create_task(operator.run())
    await until("a second term", lambda: len(operator.begun) == 2)
    operator.stop.set()
    async with asyncio.timeout(5):
        await running
    assert operator.begun == [1, 1]
    assert operator.metrics.registry.get_sample_value("phasewise_operator_leading") == 0
    assert server.stored is not None
    assert server.stored["spec"]["holderIdentity"] == ""


async def test_a_crd_that_is_not_served_yet_is_waited_for() -> None:
    server = Server()
    server.crd_after = 2
    async with asyncio.timeout(5):
        await terms(server)._wait_for_crd(cast("Kube", server))
    assert server.crd_after == -1, "asked three times"


@pytest.mark.parametrize(
    ("error", "text"),
    [(None, ""), (ValueError("a defect"), "ValueError: a defect"), (NotLeadingError("PATCH /x"), "without the lease")],
)
async def test_the_first_task_to_end_ends_the_others_and_is_logged(
    error: Exception | None, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def ends() -> None:
        if error:
            raise error

    async def goes_on() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    cancelled: list[bool] = []
    async with asyncio.timeout(5):
        await first_to_end(goes_on(), ends(), goes_on())
    assert cancelled == [True, True]
    assert text in caplog.text
