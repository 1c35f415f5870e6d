"""The standard streams of a container, as an engine sends them over one connection: frames of either output."""

_HEADER = 8

STDOUT, STDERR = 1, 2


class Frames:
    """Splits what arrives into pieces of (STDOUT or STDERR, bytes)."""

    def __init__(self) -> None:
        self._header = b""
        self._left = 0
        self._stream = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The pieces in `data`, which goes on where the last one ended."""
        pieces = []
        view = memoryview(data)
        while view:
            if not self._left:
                take = _HEADER - len(self._header)
                self._header += view[:take]
                view = view[take:]
                if len(self._header) == _HEADER:
                    self._stream, self._left = self._header[0], int.from_bytes(self._header[4:], "big")
                    self._header = b""
                continue
            piece = bytes(view[: self._left])
            pieces.append((self._stream, piece))
            self._left -= len(piece)
            view = view[len(piece) :]
        return pieces


class Kept:
    """The first `limit` bytes of an output."""

    def __init__(self, limit: int) -> None:
        self.data = bytearray()
        self.truncated = False
        self._limit = limit

    def add(self, piece: bytes) -> None:
        room = self._limit - len(self.data)
        self.data += piece[:room]
        self.truncated = self.truncated or len(piece) > room
