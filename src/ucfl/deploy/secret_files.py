"""Keys and certificates: files that only their owner can read, never arguments.

A user proves who it is by a private key whose public part the server has under the user's name. The
server proves who it is by a certificate, signed by an authority of its own that users are given.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ucfl.errors import UcflError, first_line
from ucfl.runs.files import write_atomically

#: The files of a folder of certificates: users need the first alone.
AUTHORITY, CERTIFICATE, KEY = "ca.pem", "server.pem", "server.key"
#: How names of users' key files end: what the server has, and what only the user has.
PUBLIC, PRIVATE = ".pub", ".key"
#: What a user may be called: the name is that of files, and is shown in logs and reports.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
CURVE = ec.SECP384R1()
YEARS = 2


def checked_name(name: str) -> str:
    """The name, if a user may be called so."""
    if not NAME.fullmatch(name):
        raise UcflError(
            f"{name[:80]!r} cannot be a user's name here: take up to 64 letters, digits and the "
            "signs . _ - (a letter or digit first)."
        )
    return name


def write_secret(file: Path, data: bytes) -> None:
    """A file that only its owner can read, from its first byte on."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UcflError(
            f"{file} is there already; remove it first, if nobody uses it any more."
        ) from None
    with os.fdopen(handle, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


def read_secret(file: Path) -> bytes:
    """Its contents, unless others than the owner can read it."""
    try:
        mode = file.stat().st_mode
        if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UcflError(f"{file} can be read by others; make it yours alone: chmod 600 {file}")
        return file.read_bytes()
    except OSError as error:
        raise UcflError(f"{file} cannot be read ({error.strerror}); see docs/deploy.md.") from error


def make_key(user: str, folder: Path) -> tuple[Path, Path]:
    """A user's private key and its public part, as files of the user's name."""
    key = ec.generate_private_key(CURVE)
    private, public = folder / (checked_name(user) + PRIVATE), folder / (user + PUBLIC)
    write_secret(private, _private(key))
    write_atomically(public, lambda path: path.write_bytes(public_bytes(key)))
    return private, public


def read_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """A user's private key."""
    try:
        key = serialization.load_pem_private_key(read_secret(file), password=None)
    except (ValueError, TypeError) as error:
        raise UcflError(
            f"{file} is no private key ({first_line(error)}); make one with ucfl deploy key."
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UcflError(f"{file} is a key of another kind; make one with ucfl deploy key.")
    return key


def public_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The public part of a key, as Flower writes it."""
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, kind)


def read_public_keys(folder: Path) -> dict[str, bytes]:
    """Who may take part: the public key of each user, by name."""
    found = {}
    for file in sorted(folder.glob(f"*{PUBLIC}")):
        try:
            key = serialization.load_pem_public_key(file.read_bytes())
        except (ValueError, TypeError, OSError) as error:
            raise UcflError(f"{file} is no public key ({first_line(error)}).") from error
        kind = serialization.PublicFormat.SubjectPublicKeyInfo
        found[checked_name(file.name.removesuffix(PUBLIC))] = key.public_bytes(
            serialization.Encoding.PEM, kind
        )
    return found


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """An authority, and a certificate of it for a server that is reached under these names."""
    authority, server = ec.generate_private_key(CURVE), ec.generate_private_key(CURVE)
    root = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ucfl deploy authority")])
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    signing = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    top = (
        _builder(root, root, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signing, critical=True)
        .sign(authority, hashes.SHA384())
    )
    leaf = (
        _builder(own, root, server)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False
        )
        .sign(authority, hashes.SHA384())
    )
    write_secret(folder / KEY, _private(server))  # the authority's own key is not kept
    pem = serialization.Encoding.PEM
    for name, certificate in ((CERTIFICATE, leaf), (AUTHORITY, top)):
        data = certificate.public_bytes(pem)
        write_atomically(folder / name, lambda path, data=data: path.write_bytes(data))  # type: ignore[misc]


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    today = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))  # clocks differ
        .not_valid_after(today + datetime.timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError as error:
        raise UcflError(f"{name!r} is no host's name or address.") from error


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
