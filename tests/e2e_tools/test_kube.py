"""A read that the API server could not answer is repeated; a refusal is not."""

from __future__ import annotations

import pytest
import tenacity
from e2e import cluster, kube


class Server:
    """Gives one answer after the other, the last one for ever."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = answers
        self.asked = 0

    def kubectl(self, *arguments: str) -> str:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> type[Server]:
    monkeypatch.setattr(kube.read.retry, "wait", tenacity.wait_none())  # pyright: ignore[reportFunctionMemberAccess]
    return Server


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        (["{}"], 1),
        ([cluster.ClusterError("Unable to connect to the server: TLS handshake timeout"), "{}"], 2),
    ],
)
def test_a_lost_read_is_repeated(
    answers: list[str | Exception], asked: int, serve: type[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(*answers)
    monkeypatch.setattr(cluster, "kubectl", server.kubectl)
    assert kube.get("pod", "a") == {}
    assert server.asked == asked


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (cluster.ClusterError('Error from server (NotFound): pods "a" not found'), 1),
        (cluster.ClusterError("Error from server (Forbidden): no"), 1),
        (cluster.ClusterError("connection refused"), 3),
    ],
)
def test_a_refusal_is_raised_at_once_and_an_outage_after_three_reads(
    error: Exception, asked: int, serve: type[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(error)
    monkeypatch.setattr(cluster, "kubectl", server.kubectl)
    with pytest.raises(cluster.ClusterError, match=str(error).partition("(")[0]):
        kube.get("pod", "a")
    assert server.asked == asked
