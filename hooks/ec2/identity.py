"""The identity of a deployment and the SSH keys of its machines, derived from Airflow's secret and a launch token.

A repeated launch request must have the same bytes, and a controller on another machine must be able to log in. So
nothing is random and nothing is stored. The secret is Airflow's Fernet key, which all components of a deployment share,
and no other deployment: https://airflow.apache.org/docs/apache-airflow/stable/security/secrets/fernet.html
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

KIND = b"ssh-ed25519"
MAGIC = b"openssh-key-v1\0"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """The key pair of an SSH server or client.

    :param private: in OpenSSH's format
    :param public: ``ssh-ed25519 AAAA...``
    """

    private: str = field(repr=False)
    public: str


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of an Airflow deployment in its machines' tags.

    :param deployment: distinguishes its machines from those of other deployments
    """

    deployment: str
    secret: bytes = field(repr=False)

    @classmethod
    def from_secret(cls, secret: str) -> Identity:
        return cls(_derived(secret.encode(), "deployment").hex()[:16], secret.encode())

    def host_key(self, token: str) -> KeyPair:
        return key_pair(_derived(self.secret, f"host key {token}"))

    def proof(self, *parts: str) -> str:
        """Return a tag value for these texts that only this deployment can compute.

        It uses the same secret as the host keys, so a rotation of the Fernet key affects both alike.
        """
        return _derived(self.secret, "launch " + "\0".join(parts)).hex()

    @property
    def user_key(self) -> KeyPair:
        """The key pair that controllers log in with."""
        return key_pair(_derived(self.secret, "user key"))


def identities(fernet_key: str) -> tuple[Identity, ...]:
    """Return our identity, and former ones after a rotation of the Fernet key, whose machines are still ours.

    :param fernet_key: ``[core] fernet_key``: the current key, then older ones, separated by commas
    :raises ValueError: it is empty
    """
    found = tuple(Identity.from_secret(each.strip()) for each in fernet_key.split(",") if each.strip())
    if not found:
        raise ValueError(
            "[core] fernet_key is empty, but the keys of machines are derived from it; set the same one wherever the "
            "scheduler or Lading's controller runs"
        )
    return found


def key_pair(seed: bytes) -> KeyPair:
    """Return the Ed25519 key pair of a 32-byte seed.

    The format is OpenSSH's (its PROTOCOL.key). The check number is derived from the seed, too, because the one that the
    cryptography package writes is random.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    blob = _strings(KIND, public)
    check = _derived(seed, "check")[:4]
    private = check + check + _strings(KIND, public, seed + public, b"lading")
    private += bytes(range(1, 1 + -len(private) % 8))
    data = MAGIC + _strings(b"none", b"none", b"") + struct.pack(">I", 1) + _strings(blob, private)
    text = base64.b64encode(data).decode()
    lines = [text[start : start + 70] for start in range(0, len(text), 70)]
    pem = "\n".join(["-----BEGIN OPENSSH PRIVATE KEY-----", *lines, "-----END OPENSSH PRIVATE KEY-----", ""])
    return KeyPair(pem, f"{KIND.decode()} {base64.b64encode(blob).decode()}")


def _strings(*parts: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def _derived(secret: bytes, what: str) -> bytes:
    return hmac.new(secret, f"lading {what}".encode(), hashlib.sha256).digest()


def matching(identities: Sequence[Identity], deployment: str) -> Identity | None:
    """Return the identity with this tag; None if the tag belongs to another deployment."""
    return next((each for each in identities if each.deployment == deployment), None)
