"""The API server through kubectl, for demo and tests: objects as dicts, conditions, and samples of pods' metrics."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import tenacity

from e2e import cluster
from e2e.cluster.progress import WaitTimeoutError, wait_for
from e2e.cluster.settings import NODE_NAME
from phasewise_runtime import contract

Object = dict[str, Any]
READ_SECONDS = 20
FINAL = ("(NotFound)", "(Forbidden)", "doesn't have a resource type")


def may_pass(error: BaseException) -> bool:
    """Whether the API server neither answered nor refused: it was busy, or a pod behind it."""
    return isinstance(error, cluster.ClusterError) and not any(final in str(error) for final in FINAL)


@tenacity.retry(
    retry=tenacity.retry_if_exception(may_pass),
    stop=tenacity.stop_after_attempt(3),
    wait=tenacity.wait_fixed(1),
    reraise=True,
)
def read(*arguments: str) -> str:
    """`kubectl get`. Tests ask a thousand times: one answer lost on a busy machine must not fail them."""
    return cluster.kubectl("get", f"--request-timeout={READ_SECONDS}s", *arguments)


def apply(text: str, namespace: str = "default") -> None:
    cluster.kubectl("-n", namespace, "apply", "-f", "-", text=text)


def patch(kind: str, name: str, change: Object, namespace: str = "default") -> None:
    """A JSON merge patch."""
    cluster.kubectl("-n", namespace, "patch", kind, name, "--type=merge", "-p", json.dumps(change))


def get(kind: str, name: str, namespace: str = "default") -> Object:
    return json.loads(read("-n", namespace, kind, name, "-o", "json"))


def find(kind: str, selector: str = "", namespace: str = "default") -> list[Object]:
    flags = ["-l", selector] if selector else []
    return json.loads(read("-n", namespace, kind, "-o", "json", *flags))["items"]


def pods(service: str, role: str, namespace: str = "default") -> list[Object]:
    """Those that are not being deleted."""
    selector = f"{contract.LABEL_SERVICE}={service},{contract.LABEL_ROLE}={role}"
    return [p for p in find("pods", selector, namespace) if "deletionTimestamp" not in p["metadata"]]


def deployment(service: str, role: str, namespace: str = "default") -> Object:
    """The Deployment of a pool; between rollouts there is only one."""
    (found,) = find("deployment", f"{contract.LABEL_SERVICE}={service},{contract.LABEL_ROLE}={role}", namespace)
    return found


def is_ready(pod: Object) -> bool:
    return condition(pod, "Ready")[0] == "True"


def condition(live: Object, kind: str) -> tuple[str, str, str]:
    """Status, reason and message; empty where there is no such condition."""
    known = {c["type"]: c for c in live.get("status", {}).get("conditions", [])}
    found = known.get(kind, {})
    return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def wait_ready(
    service: str, namespace: str = "default", seconds: float = 400, report: Callable[[str], object] = lambda _: None
) -> Object:
    """The service once it is Ready at its newest generation; every new reason on the way is reported."""
    reported = ""

    def probe() -> Object | None:
        nonlocal reported
        live = get("infsvc", service, namespace)
        status, reason, message = condition(live, "Ready")
        if (news := f"{reason}: {message}") != reported and reason:
            reported = news
            report(news)
        fresh = live.get("status", {}).get("observedGeneration") == live["metadata"]["generation"]
        settled = condition(live, "Reconciling")[0] == "False"
        return live if fresh and settled and status == "True" else None

    try:
        return wait_for(f"InferenceService {service} Ready", probe, seconds)
    except WaitTimeoutError as error:
        raise WaitTimeoutError(f"{error}; its last reason was {reported}") from None


def engine_metrics(pod: str, namespace: str = "default") -> dict[str, float]:
    """vLLM's samples by name with labels, as it exports them."""
    return samples(pod, contract.ENGINE_PORT, namespace)


def router_metrics(pod: str, namespace: str = "default") -> dict[str, float]:
    return samples(pod, contract.ROUTER_ADMIN_PORT, namespace)


def samples(pod: str, port: int, namespace: str) -> dict[str, float]:
    """Through the API server where that runs on the pod's node. Elsewhere NetworkPolicies refuse it: there from inside
    the pod, which is slower."""
    if cluster.is_local() and _node_of(pod, namespace) == NODE_NAME:
        lines = read(
            "--raw", f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy{contract.PATH_METRICS}"
        ).splitlines()
    else:
        url = f"http://127.0.0.1:{port}{contract.PATH_METRICS}"
        program = f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=10).read().decode())"
        lines = cluster.kubectl("-n", namespace, "exec", pod, "--", "python3", "-c", program).splitlines()
    pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


@functools.cache
def _node_of(pod: str, namespace: str) -> str:
    """A pod never moves, and one that is made in its place has another name."""
    return get("pod", pod, namespace)["spec"]["nodeName"]


def total(samples: dict[str, float], name: str, *labels: str) -> float:
    """Sum over the series of a name that carry all the given `key="value"` labels."""
    series = ((key, value) for key, value in samples.items() if key.partition("{")[0] == name)
    return sum(value for key, value in series if all(label in key for label in labels))


def tokens_over_kv(service: str, namespace: str = "default") -> float:
    """Prompt tokens that decode pods took from prefill pods, over their lives."""
    source = 'source="external_kv_transfer"'
    names = [p["metadata"]["name"] for p in pods(service, contract.DECODE, namespace) if is_ready(p)]
    return sum(total(engine_metrics(n, namespace), "vllm:prompt_tokens_by_source_total", source) for n in names)
