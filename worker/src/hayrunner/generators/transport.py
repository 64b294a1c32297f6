"""One POST that is answered by a stream: connections, four timeouts, and when to try again.

A request is tried again only before the first byte of a successful body: after that the caller
may have shown what it read. Tried again are failed connections, 408, 409, 429 and 5xx; a server
that is silent for `first_byte_timeout_s` is not, since it may be at work on the reply.
"""

import asyncio
import io
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import aiohttp

from hayrunner.errors import ProviderError
from hayrunner.generators.failures import http_error

__all__ = ["Answer", "Limits", "Transport"]

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 8.0
LONGEST_RETRY_AFTER_S = 60.0
"""A server that asks for a longer wait than this is not waited for here but reported."""

_ERROR_BODY_BYTES = 64 * 1024
_LARGE_BODY_BYTES = 512 * 1024
_DRAIN_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds, None for no limit. `connect` holds per try, DNS and TLS included; `first_byte`
    per try, from its start to the first byte of the body; `idle` between any two bytes after
    that; `total` over everything, tries, waits and callbacks included.
    """

    connect_timeout_s: float | None = 10.0
    first_byte_timeout_s: float | None = 120.0
    idle_timeout_s: float | None = 60.0
    total_timeout_s: float | None = 600.0
    max_retries: int = 0


class Answer:
    """A successful answer. `first` is the beginning of its body, `read` gives what follows."""

    def __init__(
        self, response: aiohttp.ClientResponse, first: bytes, idle_timeout_s: float | None
    ) -> None:
        self.first = first
        self._response = response
        self._content = response.content
        self._idle_s = idle_timeout_s
        self._loop = asyncio.get_running_loop()
        self._waiting_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watch(idle_timeout_s)

    async def read(self) -> bytes:
        """The next bytes, as many as have come; empty at the end of the body.

        Raises `ProviderError` when the connection breaks or stays silent for the idle time.
        """
        self._waiting_since = self._loop.time()
        try:
            return await self._content.readany()
        except aiohttp.ClientError:
            # Without its cause: aiohttp's text can hold a piece of the body.
            raise ProviderError(
                "the provider's connection broke in the middle of a reply"
            ) from None
        finally:
            self._waiting_since = None

    async def drain(self) -> None:
        """Let the body end, so that its connection can be used again. Waits next to nothing."""
        try:
            async with asyncio.timeout(_DRAIN_S):
                while await self._content.readany():
                    pass
        except (aiohttp.ClientError, ProviderError, TimeoutError):
            # The reply is whole already; all that is lost is the connection.
            self._response.close()

    def close(self) -> None:
        """Free the connection, at once: closed, unless the body was read to its end."""
        if self._timer:
            self._timer.cancel()
        self._response.close()

    def _watch(self, delay: float | None) -> None:
        if delay is not None:
            self._timer = self._loop.call_later(delay, self._check)

    def _check(self) -> None:
        """One timer per answer that looks when the last wait began: setting one anew for every
        read costs more than decoding what was read.
        """
        if self._idle_s is None:
            return
        since = self._waiting_since
        left = self._idle_s if since is None else since + self._idle_s - self._loop.time()
        if left > 0.001:
            self._watch(left)
        else:
            self._content.set_exception(_timed_out("idle", self._idle_s))


class Transport:
    """Connections to one provider, kept for reuse: a pool per event loop, made when first used.

    A pool belongs to its loop; `close_async` closes that of the running one.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = (
            WeakKeyDictionary()
        )

    def session(self) -> aiohttp.ClientSession:
        """The running loop's pool."""
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            session = aiohttp.ClientSession(
                # How many calls run at once is decided where runs are admitted, not here.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(connect=self.limits.connect_timeout_s),
            )
            self._sessions[loop] = session
        return session

    async def close_async(self) -> None:
        """Close the running loop's connections. A later call opens new ones."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def stream(
        self, url: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncGenerator[Answer, None]:
        """POST `body` and give the answer, its first byte read. Leaving the block in any way,
        cancellation too, frees the connection.

        Raises `ProviderError`; what is raised inside the block passes through unchanged.
        """
        async with _limit("total", self.limits.total_timeout_s):
            answer = await self._open(url, headers, body)
            try:
                yield answer
            finally:
                answer.close()

    async def _open(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        tries = 0
        while True:
            try:
                async with _limit("first byte", self.limits.first_byte_timeout_s):
                    return await self._try(url, headers, body)
            except _TryAgain as failed:
                wait = wait_s(tries, failed.reason.retry_after_s)
                if tries >= self.limits.max_retries or wait is None:
                    raise failed.reason from failed.reason.__cause__
            tries += 1
            await asyncio.sleep(wait)

    async def _try(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        try:
            response = await self.session().post(
                url, data=_payload(body), headers=headers, allow_redirects=False
            )
            try:
                if response.status >= 300:
                    raise await _refused(response)
                first = await response.content.readany()
                return Answer(response, first, self.limits.idle_timeout_s)
            except BaseException:
                response.close()
                raise
        except aiohttp.ConnectionTimeoutError as error:
            raise _TryAgain(_timed_out("connect", self.limits.connect_timeout_s)) from error
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            raise ProviderError("api_base_url is not an http URL", retryable=False) from None
        except aiohttp.ClientConnectorError as error:
            reason = ProviderError("the provider could not be reached")
            reason.__cause__ = error
            raise _TryAgain(reason) from None
        except aiohttp.ClientError:
            raise _TryAgain(ProviderError("the provider closed the connection")) from None


class _TryAgain(Exception):
    """A try failed for `reason`, before anything was answered that counts."""

    def __init__(self, reason: ProviderError) -> None:
        super().__init__(str(reason))
        self.reason = reason


def wait_s(tries: int, retry_after_s: float | None) -> float | None:
    """How long to wait before the next try; None where the server asks for too long a wait.

    Doubles from half a second, with up to half of it taken off at random, so that many runs
    turned away together do not come back together. `Retry-After` is a minimum.
    """
    backoff = min(FIRST_WAIT_S * 2**tries, LONGEST_WAIT_S) * random.uniform(0.5, 1.0)
    if retry_after_s is None:
        return backoff
    if retry_after_s > LONGEST_RETRY_AFTER_S:
        return None
    return retry_after_s * random.uniform(1.0, 1.1)


def _payload(body: bytes) -> bytes | io.BytesIO:
    """aiohttp warns of large bodies given as bytes; as a file they are written in pieces."""
    return body if len(body) < _LARGE_BODY_BYTES else io.BytesIO(body)


async def _refused(response: aiohttp.ClientResponse) -> Exception:
    """The exception for an answer that is no success."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > _ERROR_BODY_BYTES:
            break
    error = http_error(response.status, response.headers, bytes(body))
    return _TryAgain(error) if error.retryable else error


@asynccontextmanager
async def _limit(name: str, seconds: float | None) -> AsyncGenerator[None, None]:
    """`asyncio.timeout` whose own expiry, and no other TimeoutError, is a `ProviderError`."""
    timeout = asyncio.timeout(seconds)
    try:
        async with timeout:
            yield
    except TimeoutError as error:
        if timeout.expired():
            raise _timed_out(name, seconds) from error
        raise


def _timed_out(name: str, seconds: float | None) -> ProviderError:
    return ProviderError(f"the provider exceeded the {name} timeout of {seconds} s")
