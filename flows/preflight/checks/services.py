"""Ports and servers: what a run is told to use must answer, and it must be able to listen."""

import os
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from flows.configuration.redaction import Redactor
from flows.preflight.facts import Facts
from flows.preflight.findings import Finding, fatal, ok
from flows.preflight.registry import Cost, check

_SECONDS = 3.0
_SERVERS = {
    "PREFECT_API_URL": (4200, "start it (testgrad up), or unset it: a private server is then used"),
    "MLFLOW_TRACKING_URI": (5000, "start it (testgrad up), or unset it: a file under the root is then used"),
    "RAY_ADDRESS": (6379, "start the cluster (ray start --head), or unset it: a private one is then used"),
}


@check("ports")
def ports(facts: Facts) -> Iterator[Finding]:
    """The proxy, a private Ray and a private Prefect choose free ports; there must be some."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            probe.listen()
            port = probe.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=_SECONDS):
                pass
    except OSError as error:
        yield fatal("ports", "127.0.0.1", f"nothing can listen there: {error}", "bring up the loopback interface")
    else:
        yield ok("ports", "127.0.0.1", "free ports are to be had; none is fixed")


@check("servers", Cost.PROBE)
def servers(facts: Facts) -> Iterator[Finding]:
    """Servers that the environment names answer."""
    redactor = Redactor()
    for variable, (usual, mend) in _SERVERS.items():
        address = os.environ.get(variable, "")
        parts = urlsplit(address if "://" in address else f"//{address}")
        if not address or address in ("auto", "local") or parts.scheme in ("sqlite", "file", "postgresql", "mysql"):
            continue
        try:
            port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, usual)
            with socket.create_connection((parts.hostname or "127.0.0.1", port), timeout=_SECONDS):
                pass
        except (OSError, ValueError) as error:
            yield fatal(variable, redactor.text(address), f"does not answer: {error}", mend)
        else:
            yield ok(variable, redactor.text(address), "answers")
