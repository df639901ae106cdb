"""Certificates of test servers: self-signed ones, and those of a cluster, which one authority signs."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = datetime.timedelta(days=30)
SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclass(frozen=True, slots=True)
class Pair:
    """Certificate and key as PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        return _write(folder / f"{name}.crt", self.certificate), _write(folder / f"{name}.key", self.key)


class Authority:
    """Signs what the cluster's processes show each other."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "octavo-e2e")])
        builder = _certificate(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def write(self, folder: Path) -> Path:
        return _write(folder / "ca.crt", self.certificate)

    def service(self, name: str) -> Pair:
        """For what answers clients under a Service's name."""
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        return self._issue(name, (), [ExtendedKeyUsageOID.SERVER_AUTH], names)

    def server(self, *addresses: str) -> Pair:
        """For the API server and etcd; etcd's peers are clients of each other too."""
        names: list[x509.GeneralName] = [x509.DNSName(name) for name in SERVER_NAMES]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._issue("kube-apiserver", (), usages, x509.SubjectAlternativeName(names))

    def client(self, user: str, *groups: str) -> Pair:
        return self._issue(user, groups, [ExtendedKeyUsageOID.CLIENT_AUTH])

    def node(self, name: str, address: str) -> Pair:
        """For a kubelet: what it shows the API server, and what it serves logs with."""
        names = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address(address))]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._issue(f"system:node:{name}", ("system:nodes",), usages, x509.SubjectAlternativeName(names))

    def _issue(
        self,
        common_name: str,
        organizations: tuple[str, ...],
        usages: list[x509.ObjectIdentifier],
        names: x509.SubjectAlternativeName | None = None,
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in organizations]
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
        builder = _certificate(x509.Name(subject), self._name, key.public_key())
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return Pair(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), _private(key))


def self_signed(name: str = "localhost", key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None) -> Pair:
    """Return a certificate for localhost and 127.0.0.1 that is its own authority; ``name`` is its subject."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = _certificate(subject, subject, key.public_key())
    builder = builder.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return Pair(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), _private(key))


def service_account_keys(folder: Path) -> tuple[Path, Path]:
    """Public and private key that ServiceAccount tokens are signed with."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return _write(folder / "service-account.pub", public), _write(folder / "service-account.key", _private(key))


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + _LIFETIME)
    )


def _private(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path
