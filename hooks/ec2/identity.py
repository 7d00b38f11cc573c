"""Who we are, and the keys of machines: derived from a secret of Airflow's and the token of a launch. Pure.

A launch that is repeated must send the same bytes, and a controller on another machine must be able to log in. So
nothing here is random, and nothing is kept. The secret is Airflow's Fernet key, which every part of a deployment has
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
BLOCK = 8


@dataclass(frozen=True, slots=True)
class KeyPair:
    """The two keys of an SSH server or client.

    :param private: as OpenSSH writes it
    :param public: ``ssh-ed25519 AAAA...``
    """

    private: str = field(repr=False)
    public: str


@dataclass(frozen=True, slots=True)
class Identity:
    """An Airflow deployment, as its machines are tagged with it.

    :param deployment: distinguishes its machines from those of others
    """

    deployment: str
    secret: bytes = field(repr=False)

    @classmethod
    def from_secret(cls, secret: str) -> Identity:
        return cls(_derived(secret.encode(), "deployment").hex()[:16], secret.encode())

    def host_key(self, token: str) -> KeyPair:
        """The key of the SSH server of what is launched with a token."""
        return key_pair(_derived(self.secret, f"host key {token}"))

    def proof(self, *parts: str) -> str:
        """What only this deployment can write for these texts, as a tag of what it launches.

        The secret is that of the host keys, so that a rotation of the Fernet key is the same for both.
        """
        return _derived(self.secret, "launch " + "\0".join(parts)).hex()

    @property
    def user_key(self) -> KeyPair:
        """The key with which controllers log in."""
        return key_pair(_derived(self.secret, "user key"))


def identities(fernet_key: str) -> tuple[Identity, ...]:
    """Who we are, and after a rotation of the Fernet key who we were: its machines are still ours.

    :param fernet_key: ``[core] fernet_key``: the one in use, then older ones, with commas between them
    :raises ValueError: there is none
    """
    found = tuple(Identity.from_secret(each.strip()) for each in fernet_key.split(",") if each.strip())
    if not found:
        raise ValueError(
            "[core] fernet_key is empty: the keys of machines are derived from it; set the same one on all machines "
            "on which the scheduler or Lading's controller run"
        )
    return found


def key_pair(seed: bytes) -> KeyPair:
    """An Ed25519 key of 32 bytes.

    The format is OpenSSH's (its PROTOCOL.key), with a check number that is derived as well: what cryptography writes
    has a random one.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    blob = _strings(KIND, public)
    check = _derived(seed, "check")[:4]
    private = check + check + _strings(KIND, public, seed + public, b"lading")
    private += bytes(range(1, 1 + -len(private) % BLOCK))
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
    """The one whose machines are tagged so; None: they belong to another deployment."""
    return next((each for each in identities if each.deployment == deployment), None)
