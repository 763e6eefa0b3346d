"""`make demo`: from nothing to a streamed chat completion, its prompt computed in a prefill pod, its tokens in decode.

Then two loads show each pool grow by its own latency and shrink again (DEMO_LOAD=0 leaves them out). The service keeps
running. Everything is idempotent: interrupted at any moment, it can be run again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import yaml

from e2e import client, cluster, kube
from e2e.cluster import ClusterError
from e2e.cluster.progress import step
from e2e.deploy import DEMO as SERVICE
from e2e.deploy import DEMO_NAMESPACE as NAMESPACE
from e2e.deploy import NAMESPACE as OPERATOR_NAMESPACE
from e2e.deploy import OPERATOR, bring_up
from e2e.images import ROOT, ImageError
from e2e.scaling_demo import show_scaling
from phasewise_runtime import contract

MODEL = "tiny"
LOCAL_PORT = 8080
PROMPT = "Say what prefill and decode are, and why they want different hardware. " * 12
TOKENS = 32


def main() -> int:
    started = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        engine = bring_up()
        with step("service: kubectl apply -f examples/quickstart.yaml, until Ready (some 90 s: two engines start)"):
            kube.apply(quickstart(engine), NAMESPACE)
            kube.wait_ready(SERVICE, seconds=900, report=lambda text: print(f"    {text[:150]}", flush=True))
        url = expose()
        answered = show(url)
        return answered or scale(url, started)
    except KeyboardInterrupt:
        print("\ndemo: interrupted; `make demo` goes on from here, `make down` removes everything", file=sys.stderr)
        return 130
    except (ClusterError, ImageError, AssertionError, subprocess.CalledProcessError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


def quickstart(engine: str) -> str:
    """The example as it is; on a cluster of the user's own with the engine image's name in their registry."""
    text = (ROOT / "examples" / "quickstart.yaml").read_text()
    written = yaml.safe_load(text)["spec"]["engine"]["image"]
    return text if engine.endswith(f"/{written}") and cluster.is_local() else text.replace(written, engine)


def expose() -> str:
    target = f"{NAMESPACE}/{SERVICE}:80"
    try:
        return cluster.selected().expose(target, LOCAL_PORT)
    except ClusterError:
        return cluster.selected().expose(target)  # the port is in use: any free one will do


def show(url: str) -> int:
    """A streamed completion, with the parts of its TTFT. The exit code."""
    before = kube.tokens_over_kv(SERVICE)
    # A new prompt: one that the decode pod has in its cache needs no transfer.
    content = f"[{time.time_ns()}] {PROMPT}"
    body = {
        "model": MODEL,
        "stream": True,
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": content}],
    }
    with step(f"request: a streamed chat completion, {len(content)} characters of prompt, {TOKENS} tokens"):
        answer = client.ask(url, "/v1/chat/completions", body)
    if answer.error or answer.ttft is None:
        print(f"demo: the completion failed: {answer.error or 'no token came'}", file=sys.stderr)
        return 1
    moved = kube.tokens_over_kv(SERVICE) - before
    prompt_tokens = answer.usage.get("prompt_tokens", 0)
    itl = 1000 * sum(answer.gaps) / max(1, len(answer.gaps))
    print(f"    answer (the model was never trained): {answer.text!r}")
    parts = ", ".join(f"{name} {ms:.0f} ms" for name, ms in answer.timing.items())
    print(f"    TTFT {1000 * answer.ttft:.0f} ms at the client: {parts} in the router")
    print(f"    ITL {itl:.0f} ms over {len(answer.gaps) + 1} tokens")
    print(f"    KV transfer: {moved:.0f} of {prompt_tokens} prompt tokens came from the prefill pod\n")
    print(cluster.kubectl("get", "infsvc", SERVICE), end="")
    print(cluster.kubectl("get", "pods", "-l", f"{contract.LABEL_SERVICE}={SERVICE}"))
    if moved <= 0:
        print("demo: no prompt token came over KV transfer", file=sys.stderr)
        return 1
    return 0


def scale(url: str, started: float) -> int:
    """The pools under load, and commands to try next. The exit code."""
    if os.environ.get("DEMO_LOAD") == "0":
        print("DEMO_LOAD=0: the loads that make the pools grow are left out")
        succeeded = True
    else:
        print("Two loads follow, 4 to 8 minutes in all; DEMO_LOAD=0 leaves them out.")
        succeeded = show_scaling(url, SERVICE, NAMESPACE, MODEL)
    print()
    print_next(url)
    if not succeeded:
        print("demo: the pools did not follow the loads as they should, see above", file=sys.stderr)
        return 1
    print(f"demo: ok ({time.monotonic() - started:.0f} s in all)")
    return 0


def print_next(url: str) -> None:
    metrics = cluster.selected().expose(f"{OPERATOR_NAMESPACE}/{OPERATOR}:{contract.OPERATOR_PORT}")
    message = '{"role": "user", "content": "hi"}'
    request = f'{{"model": "{MODEL}", "stream": true, "max_tokens": 16, "messages": [{message}]}}'
    print("The service goes on running. Try:")
    print(f"  curl -N {url}/v1/chat/completions -H 'content-type: application/json' -d '{request}'")
    if cluster.is_local():
        print(f"  export KUBECONFIG={cluster.kubeconfig_path()}   # then kubectl get infsvc, or without kubectl:")
        print("  .venv/bin/python -m e2e.cluster kubectl get infsvc")
    print(f"  curl {metrics}/metrics   # the operator's own")
    print("  make down   # removes everything but the build cache\n")


if __name__ == "__main__":
    sys.exit(main())
