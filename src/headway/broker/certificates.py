"""A local certificate authority and its certificates, created with the system's `openssl`."""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from headway.errors import LocalBrokerError

_AUTHORITY_YEARS = 10
_LIFETIME = timedelta(days=365)
# Certificates are valid from five minutes ago, because the clocks of containers and virtual machines may be behind.
_BACKDATED = timedelta(minutes=5)

# Without this option LibreSSL writes the parameters of the curve instead of its name, and Java cannot read that.
_NAMED_CURVE = ("-pkeyopt", "ec_param_enc:named_curve")
_CONFIG, _KEY, _REQUEST = "openssl.cnf", "key.pem", "request.pem"

# All openssl commands use this file, so that the system's own openssl.cnf has no influence.
_SETTINGS = """\
[req]
distinguished_name = name
prompt = no
[name]
CN = {name}
[root]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[ca]
default_ca = here
[here]
database = index.txt
new_certs_dir = .
serial = serial
default_md = sha256
policy = policy
email_in_dn = no
[policy]
commonName = supplied
[leaf]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
{alternatives}
"""


class Authority:
    """A certificate authority. Its key and certificate are files in one directory, which `make` creates."""

    def __init__(self, directory: Path) -> None:
        self._key = directory / "ca.key"
        self.certificate = directory / "ca.crt"

    def issue(self, name: str, file: Path, *, hosts: Sequence[str] = (), lifetime: timedelta = _LIFETIME) -> None:
        """Create a private key and its certificate, and write both to one PEM file.

        Args:
            name: The common name.
            file: The PEM file to write.
            hosts: The addresses and names of the server that will use the certificate.
            lifetime: How long the certificate is valid from now on, rounded down to seconds.
        """
        with tempfile.TemporaryDirectory(dir=file.parent) as work:
            now = datetime.now(UTC)
            key = _begin(Path(work), name, hosts)
            request = _openssl(work, "req", "-new", "-config", _CONFIG, "-key", _KEY)
            Path(work, _REQUEST).write_bytes(request)
            Path(work, "index.txt").touch()
            Path(work, "serial").write_text(f"01{os.urandom(15).hex()}\n", encoding="ascii")
            options = "-batch", "-notext", "-config", _CONFIG, "-extensions", "leaf", "-in", _REQUEST
            dates = "-startdate", _asn1(min(now, now + lifetime) - _BACKDATED), "-enddate", _asn1(now + lifetime)
            signer = "-keyfile", str(self._key), "-cert", str(self.certificate)
            write_private(file, key + _openssl(work, "ca", *options, *dates, *signer))

    @property
    def complete(self) -> bool:
        """True if both the key and the certificate exist."""
        return self._key.exists() and self.certificate.exists()

    def make(self) -> None:
        """Create the authority's key and its own certificate, unless both exist."""
        if self.complete:
            return
        with tempfile.TemporaryDirectory(dir=self._key.parent) as work:
            key = _begin(Path(work), "Headway local broker")
            options = "-x509", "-new", "-sha256", "-extensions", "root", "-days", str(365 * _AUTHORITY_YEARS)
            certificate = _openssl(work, "req", *options, "-config", _CONFIG, "-key", _KEY)
            write_private(self._key, key)
            write_private(self.certificate, certificate)  # written last, so if it exists, so does the key


def write_private(file: Path, content: bytes) -> None:
    """Write a file that only its owner can read. The file is written completely or not at all."""
    unfinished = file.with_name(f".{file.name}.{os.urandom(6).hex()}")
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(content)
        unfinished.replace(file)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _begin(work: Path, name: str, hosts: Sequence[str] = ()) -> bytes:
    """Write the configuration for `name` and an unencrypted PKCS#8 key, which both Java and OpenSSL can read."""
    alternatives = ", ".join(f"{'IP' if host[0].isdigit() else 'DNS'}:{host}" for host in hosts)
    text = _SETTINGS.format(name=name, alternatives=f"subjectAltName = {alternatives}" if alternatives else "")
    (work / _CONFIG).write_text(text, encoding="utf-8")
    key = _openssl(str(work), "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", *_NAMED_CURVE)
    write_private(work / _KEY, key)
    return key


def _asn1(time: datetime) -> str:
    return time.strftime("%Y%m%d%H%M%SZ")


def _openssl(work: str, *arguments: str) -> bytes:
    """Run openssl in the directory `work` and return its output.

    Keys are passed in files, never as arguments, because other users can see the arguments of a process.
    """
    try:
        done = subprocess.run(  # noqa: S603 - the arguments are our own
            ["openssl", *arguments],  # noqa: S607 - the first openssl on the user's PATH
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
    except FileNotFoundError as error:
        raise LocalBrokerError(
            "A secure local broker needs the program openssl for its certificates, but it is not on PATH. Install it "
            "(`apt install openssl`), or start the broker without security."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise LocalBrokerError(f"openssl {arguments[0]} did not end within 60 s. Start the broker again.") from error
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip().splitlines()
        raise LocalBrokerError(f"openssl {arguments[0]} failed: {reason[-1] if reason else 'it gave no reason'}.")
    return done.stdout
