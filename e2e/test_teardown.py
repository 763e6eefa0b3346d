"""Deleting a service leaves nothing of it."""

from __future__ import annotations

from e2e import cluster, kube
from e2e.conftest import Service
from phasewise_runtime import contract

KINDS = "deployments,replicasets,pods,services,endpointslices,serviceaccounts,roles,rolebindings,pdb,poolscalers"


def test_delete_leaves_nothing(service: Service) -> None:
    service.wait_ready()
    cluster.kubectl("-n", service.namespace, "delete", "infsvc", service.name)
    selector = f"{contract.LABEL_SERVICE}={service.name}"
    kube.wait_for("nothing left", lambda: not kube.find(KINDS, selector, service.namespace), 120)
