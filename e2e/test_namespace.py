"""A namespace is deleted under a stream. Comes last of all files: the service `chat` is gone after it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from e2e import client, cluster, kube
from e2e.cluster.progress import wait_for
from e2e.deploy import NAMESPACE as OPERATOR_NAMESPACE
from e2e.deploy import OPERATOR
from e2e.load import COMPLETIONS, make_request
from e2e.service import Service

TOKENS = 600
GONE_SECONDS = 30
"""From the end of the last stream to the end of the last pod."""


def test_when_its_namespace_is_deleted_a_stream_ends_whole_and_the_pods_go_soon_after(chat: Service) -> None:
    body = make_request(chat.model, 8000, 100, chat=False, stream=True, output=TOKENS).body | {"ignore_eos": True}
    answer = client.Answer()
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.ask, chat.url, COMPLETIONS, body, None, answer)
        wait_for("a token of the stream", lambda: answer.text, 60, 0.05)
        cluster.kubectl("delete", "namespace", chat.namespace, "--wait=false")
        asking.result()
    ended = time.monotonic()
    assert (answer.error, answer.finish_reason) == (None, "length")
    assert answer.usage["completion_tokens"] == TOKENS
    wait_for("no pod left", lambda: not kube.find("pods", namespace=chat.namespace), 120, 0.5)
    seconds = time.monotonic() - ended
    print(f"the last pod was gone {seconds:.1f} s after the last stream")
    assert seconds <= GONE_SECONDS
    log = cluster.kubectl("-n", OPERATOR_NAMESPACE, "logs", "-l", f"app.kubernetes.io/name={OPERATOR}", "--since=3m")
    assert "Traceback" not in log
