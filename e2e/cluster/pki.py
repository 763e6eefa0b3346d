"""The cluster's certificates: two authorities (the cluster's, the aggregation layer's) and a leaf for each part.

All of them are made in a temporary folder that is renamed when complete: a cluster never sees half a set. A second node
gets a folder with its own only.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from e2e.cluster.settings import API_SERVICE_IP, FIRST_NODE, NODE_IP, NodeIdentity

CLUSTER_CA = "ca"
FRONT_PROXY_CA = "front-proxy-ca"
SERVICE_ACCOUNTS = "service-accounts"
LIFETIME = datetime.timedelta(days=365)


@dataclass(frozen=True)
class Leaf:
    """One certificate: a server's when it has names, else a client's."""

    name: str
    common_name: str
    organization: str | None = None
    names: tuple[str, ...] = ()
    authority: str = CLUSTER_CA


def node_leaves(node: NodeIdentity) -> tuple[Leaf, ...]:
    user = f"system:node:{node.name}"
    return (
        Leaf("kubelet-serving", user, "system:nodes", names=(node.name, node.ip)),
        Leaf("kubelet", user, "system:nodes"),
    )


LEAVES = (
    Leaf(
        "apiserver",
        "kube-apiserver",
        names=(
            "localhost",
            "127.0.0.1",
            NODE_IP,
            API_SERVICE_IP,
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ),
    ),
    Leaf("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
    Leaf("front-proxy-client", "front-proxy-client", authority=FRONT_PROXY_CA),
    *node_leaves(FIRST_NODE),
    Leaf("admin", "phasewise-admin", "system:masters"),
    Leaf("kube-controller-manager", "system:kube-controller-manager"),
    Leaf("kube-scheduler", "system:kube-scheduler"),
    Leaf("kube-proxy", "system:kube-proxy"),
)


@dataclass(frozen=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def ensure_certificates(folder: Path, now: datetime.datetime) -> None:
    if folder.is_dir():
        return
    making = folder.with_name(folder.name + ".making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(mode=0o700, parents=True)
    authorities = {name: _authority(name, now) for name in (CLUSTER_CA, FRONT_PROXY_CA)}
    for name, authority in authorities.items():
        _write(making, name, authority.certificate, authority.key)
    for leaf in LEAVES:
        _write_leaf(making, leaf, authorities[leaf.authority], now)
    _write_service_account_keys(making)
    making.rename(folder)


def make_node_certificates(folder: Path, node: NodeIdentity, cluster: Path, now: datetime.datetime) -> None:
    """A further node's: its own, signed by the authority in the folder `cluster`, and that authority's certificate."""
    folder.mkdir(mode=0o700, parents=True)
    authority = _read_authority(cluster, CLUSTER_CA)
    shutil.copy(cluster / f"{CLUSTER_CA}.crt", folder)
    for leaf in node_leaves(node):
        _write_leaf(folder, leaf, authority, now)


def _read_authority(folder: Path, name: str) -> _Authority:
    key = serialization.load_pem_private_key((folder / f"{name}.key").read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return _Authority(x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes()), key)


def _authority(name: str, now: datetime.datetime) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name, None)
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(subject, subject, key, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _Authority(certificate, key)


def _signed(
    leaf: Leaf, key: ec.EllipticCurvePrivateKey, authority: _Authority, now: datetime.datetime
) -> x509.Certificate:
    usage = ExtendedKeyUsageOID.SERVER_AUTH if leaf.names else ExtendedKeyUsageOID.CLIENT_AUTH
    subject = _subject(leaf.common_name, leaf.organization)
    builder = (
        _builder(subject, authority.certificate.subject, key, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    if leaf.names:
        names = x509.SubjectAlternativeName([_general_name(name) for name in leaf.names])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(authority.key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + LIFETIME)
    )


def _subject(common_name: str, organization: str | None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_service_account_keys(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / f"{SERVICE_ACCOUNTS}.pub").write_bytes(public)
    _write_key(folder / f"{SERVICE_ACCOUNTS}.key", key)


def _write_leaf(folder: Path, leaf: Leaf, authority: _Authority, now: datetime.datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    _write(folder, leaf.name, _signed(leaf, key, authority, now), key)


def _write(folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_key(folder / f"{name}.key", key)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(encoded)
