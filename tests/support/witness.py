"""What an attack may not touch: ports, sockets and a file of the host that notice it."""

import asyncio
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

PORTS = ("LOOPBACK_PORT", "OPEN_PORT")


@dataclass
class Witness:
    """`touched` says what was reached. `facts` are where it all lies, for an attacker who knows the host well."""

    folder: Path
    canary: str
    abstract: str
    ports: dict[str, int] = field(default_factory=dict)
    touched: list[str] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def watching(cls) -> AsyncIterator["Witness"]:
        """A witness whose ports listen until the context ends."""
        with tempfile.TemporaryDirectory(prefix="witness-") as name:
            folder = Path(name)
            folder.chmod(0o755)
            witness = cls(folder, f"canary-{secrets.token_hex(12)}", f"witness-{secrets.token_hex(8)}")
            (folder / "secret").write_text(witness.canary)
            (folder / "secret").chmod(0o666)
            servers = [
                await asyncio.start_server(witness._visitor("LOOPBACK_PORT"), "127.0.0.1", 0),
                await asyncio.start_server(witness._visitor("OPEN_PORT"), "0.0.0.0", 0),
                await asyncio.start_unix_server(witness._visitor("a socket file"), folder / "socket"),
                await asyncio.start_unix_server(witness._visitor("an abstract socket"), "\0" + witness.abstract),
            ]
            (folder / "socket").chmod(0o777)
            for port, server in zip(PORTS, servers[:2], strict=True):
                witness.ports[port] = server.sockets[0].getsockname()[1]
            udp, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: _Datagrams(witness), ("0.0.0.0", 0)
            )
            witness.ports["UDP_PORT"] = udp.get_extra_info("sockname")[1]
            try:
                yield witness
            finally:
                udp.close()
                for server in servers:
                    server.close()
            if (folder / "secret").read_text() != witness.canary:
                witness.touched.append("the host's file was changed")

    def facts(self) -> dict[str, str]:
        """What stands for @NAME@ in an attack."""
        return {
            **{name: str(port) for name, port in self.ports.items()},
            "HOST_ADDRESS": _own_address(),
            "ABSTRACT": self.abstract,
            "HOST_FILE": str(self.folder / "secret"),
            "HOST_SOCKET": str(self.folder / "socket"),
        }

    def _visitor(self, name: str):  # type: ignore[no-untyped-def]
        async def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.touched.append(f"{name} was reached")
            writer.close()

        return visited


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, witness: Witness) -> None:
        self._witness = witness

    def datagram_received(self, data: bytes, address: object) -> None:
        self._witness.touched.append("UDP_PORT was reached")


def _own_address() -> str:
    """The address by which other machines would reach this one; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
