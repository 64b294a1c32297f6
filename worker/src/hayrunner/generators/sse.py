"""Server-sent events: bytes as they come off the socket to the `data` payloads in them.

Written from the parsing rules of the HTML standard, section 9.2.6, with one leniency: what
stands in the buffer when the stream ends is still delivered, since many servers leave out the
last blank line. Event names, ids and retry times are read over: a chat-completions stream says
everything in its data.
"""

__all__ = ["MAX_EVENT_BYTES", "EventTooLong", "SseParser"]

MAX_EVENT_BYTES = 8 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"


class EventTooLong(Exception):
    """A single event outgrew the parser's limit without an end in sight."""


class SseParser:
    """Feed it bytes split anywhere, inside a line end or a character too: the payloads that come
    out are the same. Holds at most `max_event_bytes` of an unfinished event.
    """

    __slots__ = ("_after_cr", "_max", "_started", "_tail")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._tail = b""
        self._after_cr = False
        self._started = False
        self._max = max_event_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that `data` completes, in order. Raises `EventTooLong`."""
        if self._after_cr or b"\r" in data:
            data = self._only_line_feeds(data)
        if self._tail:
            data = self._tail + data
        if not self._started:
            if _BOM.startswith(data[:3]) and len(data) < 3:
                self._tail = data
                return []
            self._started = True
            data = data.removeprefix(_BOM)
        blocks = data.split(b"\n\n")
        self._tail = blocks.pop()
        if len(self._tail) > self._max:
            raise EventTooLong(f"an event is longer than {self._max} bytes")
        payloads: list[bytes] = []
        for block in blocks:
            # What nearly every event is: one data line.
            if len(block) > 6 and block.startswith(b"data: ") and b"\n" not in block:
                payloads.append(block[6:])
            else:
                payloads.extend(_payloads(block))
        return payloads

    def close(self) -> list[bytes]:
        """The payload of an event that the stream's end cut its blank line from, if any."""
        tail, self._tail = self._tail, b""
        return _payloads(tail)

    def _only_line_feeds(self, data: bytes) -> bytes:
        """CRLF and CR become LF. A CR at the end counts at once, an LF that follows it is eaten."""
        if not data:
            return data
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
            if not data:
                self._after_cr = False
                return data
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _payloads(block: bytes) -> list[bytes]:
    """The payload of a block's lines: none, or one. A blank line inside is a dispatch of nothing,
    since a block ends at the first blank line that follows a line.
    """
    lines: list[bytes] = []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" "))
    payload = b"\n".join(lines)
    return [payload] if payload else []
