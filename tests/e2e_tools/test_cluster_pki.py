"""The certificates are what their users check: names, authority, and keys for the owner's eyes."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from e2e.cluster.pki import LEAVES, Leaf, ensure_certificates
from e2e.cluster.settings import API_SERVICE_IP, NODE_IP

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.timezone.utc)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state") / "pki"
    ensure_certificates(folder, NOW)
    return folder


def certificate(pki: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((pki / f"{name}.crt").read_bytes())


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.name)
def test_each_leaf_is_signed_by_its_authority(pki: Path, leaf: Leaf) -> None:
    certificate(pki, leaf.name).verify_directly_issued_by(certificate(pki, leaf.authority))


def test_the_api_server_is_known_by_all_the_names_it_is_called_by(pki: Path) -> None:
    names = certificate(pki, "apiserver").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = names.get_values_for_type(x509.IPAddress)
    assert {"127.0.0.1", NODE_IP, API_SERVICE_IP} <= set(map(str, addresses))
    assert "kubernetes.default.svc" in names.get_values_for_type(x509.DNSName)
    assert all(isinstance(address, ipaddress.IPv4Address) for address in addresses)


def test_keys_are_for_their_owner_alone(pki: Path) -> None:
    assert {path.stat().st_mode & 0o777 for path in pki.glob("*.key")} == {0o600}


def test_certificates_that_are_there_stay(pki: Path) -> None:
    before = (pki / "ca.crt").read_bytes()
    ensure_certificates(pki, NOW)
    assert (pki / "ca.crt").read_bytes() == before


def test_half_a_set_left_by_an_interruption_is_made_anew(tmp_path: Path) -> None:
    left = tmp_path / "pki.making"
    left.mkdir()
    (left / "ca.key").touch()
    ensure_certificates(tmp_path / "pki", NOW)
    assert (tmp_path / "pki" / "admin.crt").exists()
    assert not left.exists()
