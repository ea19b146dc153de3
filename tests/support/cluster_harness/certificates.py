"""Certificates of a cluster, on elliptic curves, since keys of RSA take a tenth of a second each."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = dt.timedelta(days=30)


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its key, both in PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs the certificates of one cluster."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name, ())
        builder = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
        )
        self.certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        """The authority's own certificate, in PEM."""

    def issue(
        self,
        name: str,
        *,
        groups: Sequence[str] = (),
        hosts: Sequence[str] = (),
        addresses: Sequence[str] = (),
    ) -> KeyPair:
        """Return a certificate for a client, and for a server under these host names and addresses.

        Args:
            name: what Kubernetes takes for the user's name.
            groups: what Kubernetes takes for the user's groups.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = [
            *(x509.DNSName(host) for host in hosts),
            *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses),
        ]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = _builder(_name(name, groups), self._name, key).add_extension(
            x509.ExtendedKeyUsage(usages), critical=False
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        return KeyPair(certificate, private_pem(key))


def signing_key() -> ec.EllipticCurvePrivateKey:
    """Return a new key for the tokens of service accounts."""
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a key in PEM, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the public half of a key in PEM."""
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _name(name: str, groups: Sequence[str]) -> x509.Name:
    return x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + _VALID)
    )
