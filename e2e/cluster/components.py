"""The command line of every part of the cluster. Pure: paths and constants in, arguments out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from e2e.cluster.settings import API_SERVER_PORT, NODE_IP, SERVICE_CIDR, Settings

ETCD = "http://127.0.0.1:2379"
ETCD_PEER = "http://127.0.0.1:2380"

# In the order in which they start.
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE_AGENTS = ("containerd", "kubelet", "kube-proxy", "kube-router")
COMPONENTS = (*CONTROL_PLANE, *NODE_AGENTS)


def command_lines(settings: Settings, programs: Mapping[str, Path], containerd: str) -> dict[str, list[str]]:
    arguments = {
        "etcd": _etcd(settings),
        "kube-apiserver": _apiserver(settings),
        "kube-controller-manager": _controller_manager(settings),
        "kube-scheduler": _scheduler(settings),
        "kubelet": _kubelet(settings),
        "kube-proxy": [f"--config={settings.state}/kube-proxy.json", "--v=1"],
        "kube-router": _firewall(settings),
    }
    commands = {name: [str(programs[name]), *flags] for name, flags in arguments.items()}
    return commands | {"containerd": [containerd, f"--config={settings.state}/containerd.toml", "--log-level=info"]}


def _etcd(settings: Settings) -> list[str]:
    return [
        "--name=etcd",
        f"--data-dir={settings.state}/etcd",
        "--unsafe-no-fsync",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        f"--listen-peer-urls={ETCD_PEER}",
        f"--initial-advertise-peer-urls={ETCD_PEER}",
        f"--initial-cluster=etcd={ETCD_PEER}",
        "--log-level=warn",
    ]


def _apiserver(settings: Settings) -> list[str]:
    pki = settings.pki
    return [
        f"--etcd-servers={ETCD}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        f"--advertise-address={NODE_IP}",
        f"--secure-port={API_SERVER_PORT}",
        f"--cert-dir={settings.state}/certificates",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet-client.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        # Without it, logs and exec try to resolve the node's name.
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={pki}/service-accounts.pub",
        f"--service-account-signing-key-file={pki}/service-accounts.key",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki}/front-proxy-client.crt",
        f"--proxy-client-key-file={pki}/front-proxy-client.key",
        f"--audit-policy-file={settings.state}/audit-policy.json",
        f"--audit-log-path={settings.audit_log}",
        "--allow-privileged=true",
        "--profiling=false",
    ]


def _controller_manager(settings: Settings) -> list[str]:
    return [
        *_kubeconfigs(settings, "kube-controller-manager"),
        f"--service-account-private-key-file={settings.pki}/service-accounts.key",
        f"--root-ca-file={settings.pki}/ca.crt",
        f"--cluster-signing-cert-file={settings.pki}/ca.crt",
        f"--cluster-signing-key-file={settings.pki}/ca.key",
        f"--requestheader-client-ca-file={settings.pki}/front-proxy-ca.crt",
        "--use-service-account-credentials",
        # A node whose control plane was away is not dead.
        "--node-monitor-grace-period=10m",
        # The default of 20 delays the first service accounts by five seconds.
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        *_alone(settings),
    ]


def _scheduler(settings: Settings) -> list[str]:
    return [
        *_kubeconfigs(settings, "kube-scheduler"),
        f"--requestheader-client-ca-file={settings.pki}/front-proxy-ca.crt",
        *_alone(settings),
    ]


def _kubelet(settings: Settings) -> list[str]:
    return [
        f"--config={settings.state}/kubelet.json",
        f"--kubeconfig={settings.state}/kubelet.kubeconfig",
        f"--root-dir={settings.state}/kubelet",
        f"--cert-dir={settings.state}/certificates",
        f"--hostname-override={settings.node.name}",
        f"--node-ip={settings.node.ip}",
        "--v=1",
    ]


def _firewall(settings: Settings) -> list[str]:
    """kube-router's firewall alone: routes are the CNI plugin's, services kube-proxy's."""
    return [
        "--run-firewall=true",
        "--run-router=false",
        "--run-service-proxy=false",
        f"--kubeconfig={settings.state}/kube-router.kubeconfig",
        f"--hostname-override={settings.node.name}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--health-port=0",
    ]


def _kubeconfigs(settings: Settings, name: str) -> list[str]:
    path = settings.state / f"{name}.kubeconfig"
    return [f"--{use}kubeconfig={path}" for use in ("", "authentication-", "authorization-")]


def _alone(settings: Settings) -> list[str]:
    return [
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        "--profiling=false",
        f"--cert-dir={settings.state}/certificates",
    ]
