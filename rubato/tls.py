"""Whose signature on a service's certificate counts: for commands, agents and controllers alike."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from rubato.errors import UserError


def trusted(url: str, environment: Mapping[str, str]) -> ssl.SSLContext | bool:
    """Who may have signed a service's certificate, as httpx takes it where it follows no redirects.

    Whom SSL_CERT_FILE and SSL_CERT_DIR name, as elsewhere; True: the public authorities. Plain HTTP has none: False,
    for loading the authorities takes longer than most requests.

    Raises:
        UserError: the file cannot be read.
    """
    if url.startswith("http://"):
        return False
    file, folder = environment.get("SSL_CERT_FILE") or None, environment.get("SSL_CERT_DIR") or None
    if file is None and folder is None:
        return True
    try:
        return ssl.create_default_context(cafile=file, capath=folder)
    except OSError as error:
        raise UserError(f"SSL_CERT_FILE={file} holds no certificates that can be read: {error}") from error
