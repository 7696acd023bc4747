"""A real HTTPS server with an authority of its own, which answers as told and remembers what it was sent."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "hooks.example"
DAY = datetime.timedelta(days=1)
_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True)
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    """By lower-case name."""
    body: bytes


@dataclass
class HttpsServer:
    """Answers 204, or what `answers` says, one after the other: a status, `hang`, `drip`, or a place to go to."""

    port: int = 0
    ca_file: Path = Path()
    answers: list[int | str] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str = "/hook", host: str = HOST) -> str:
        return f"https://{host}:{self.port}{path}"


class _Handler(BaseHTTPRequestHandler):
    server_of: HttpsServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server_of.received.append(Received(self.path, headers, body))
        answer = self.server_of.answers.pop(0) if self.server_of.answers else 204
        with suppress(OSError):  # the other side may leave when it likes
            self._answer(answer)

    def _answer(self, answer: int | str) -> None:
        if answer == "hang":
            self.server_of.is_over.wait()
        elif answer == "drip":
            self.send_response(200)
            self.end_headers()
            while not self.server_of.is_over.is_set():
                self.wfile.write(b"x" * 1024)
        elif isinstance(answer, str):
            self.send_response(302)
            self.send_header("Location", answer)
            self.end_headers()
        else:
            self.send_response(answer)
            self.end_headers()


@contextmanager
def https_server(folder: Path, name: str = HOST) -> Iterator[HttpsServer]:
    """A server on 127.0.0.1 whose certificate is for a name and for that address; ended on leaving."""
    folder.mkdir(parents=True, exist_ok=True)
    made = HttpsServer(ca_file=folder / "ca.pem")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(_write_certificates(folder, name))
    handler = type("BoundHandler", (_Handler,), {"server_of": made})

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that refuses the certificate is what some tests are about

        def get_request(self) -> tuple[Any, Any]:
            connection, address = super().get_request()
            # The handshake is made by the thread of the connection: one that never comes must not stop the others.
            return tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    with Server(("127.0.0.1", 0), handler) as server:
        made.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.is_over.set()
            server.shutdown()
            thread.join()


def _write_certificates(folder: Path, name: str) -> Path:
    """The authority into `ca.pem`; gives the file of the server's key and certificate."""
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of a test")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    root = _builder(issuer, issuer, authority.public_key(), authority.public_key(), now)
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    root = root.add_extension(_SIGNS_CERTIFICATES, critical=True)
    names = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    leaf = _builder(subject, issuer, key.public_key(), authority.public_key(), now)
    leaf = leaf.add_extension(x509.SubjectAlternativeName(names), critical=False)
    (folder / "ca.pem").write_bytes(_pem(root.sign(authority, hashes.SHA256())))
    file = folder / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + _pem(leaf.sign(authority, hashes.SHA256())))
    return file


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Any, authority: Any, now: datetime.datetime
) -> x509.CertificateBuilder:
    """With the extensions that newer Pythons insist on."""
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - DAY).not_valid_after(now + DAY)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority)
    return builder.add_extension(issued_by, critical=False)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
