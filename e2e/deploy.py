"""Phasewise on a cluster, from nothing: cluster, images, chart. The demo shows it, the tests and the soak use it."""

from __future__ import annotations

import os

from e2e import cluster, images, kube
from e2e.cluster.packages import ensure_system_packages
from e2e.cluster.progress import step
from e2e.images import ROOT

NAMESPACE = "phasewise"
RELEASE = "phasewise"
OPERATOR = "phasewise-operator"
"""The chart's Deployment and Service in that release."""
HELM_SECONDS = 120
DEMO, DEMO_NAMESPACE = "quickstart", "default"
"""The InferenceService that `make demo` leaves running."""


def bring_up() -> str:
    """The CPU engine's image, as the cluster knows it. Idempotent: what is there already is left as it is."""
    selected = cluster.selected()
    with step("cluster: Kubernetes 1.34 in a network namespace (10 s; built once, some 8 minutes)"):
        selected.up()
    os.environ["KUBECONFIG"] = str(selected.kubeconfig_path())
    with step("images: operator, runtime, CPU engine (the first time some 5 minutes, nothing where nothing changed)"):
        ensure_system_packages()
        built = images.build(list(images.IMAGES))
        os.environ.update(images.storage_environment())
        known = {image.reference: selected.load_image(image.source) for image in built}
    with step("chart: helm upgrade --install phasewise charts/phasewise"):
        operator = images.IMAGES["operator"].reference
        digest = next(image.digest for image in built if image.reference == operator)
        install(known[operator], known[images.IMAGES["runtime"].reference], digest)
    return known[images.IMAGES["vllm-cpu"].reference]


def install(operator: str, runtime: str, operator_digest: str) -> None:
    """The tag of a local image stays the same: the annotation is what rolls the operator when the image is another."""
    annotation = f"podAnnotations.phasewise\\.dev/image={operator_digest[:12]}"
    settings = [annotation]
    for value, image in (("image", operator), ("runtimeImage", runtime)):
        repository, _, tag = image.rpartition(":")
        settings += [f"{value}.repository={repository}", f"{value}.tag={tag}"]
    flags = [flag for value in settings for flag in ("--set-string", value)]
    where = ["--namespace", NAMESPACE, "--create-namespace"]
    wait = ["--wait", f"--timeout={HELM_SECONDS}s"]
    cluster.helm("upgrade", "--install", RELEASE, str(ROOT / "charts" / "phasewise"), *where, *wait, *flags)


def stop_demo() -> None:
    """Two cores do not hold the demo's service and another one under load."""
    if any(live["metadata"]["name"] == DEMO for live in kube.find("infsvc", namespace=DEMO_NAMESPACE)):
        with step(f"stopping service {DEMO}, which `make demo` left running"):
            where = ("-n", DEMO_NAMESPACE)
            cluster.kubectl(*where, "delete", "infsvc", DEMO, "--cascade=foreground", "--timeout=180s")
