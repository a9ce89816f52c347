"""Let a request in, or not: by its host and origin, its token, and how often its client asks.

Process: a replica of the service.  Thread: its event loop; tokens are looked up in another.
"""

import hashlib
import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from anyio import to_thread
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainflow.clock import Clock
from trainflow.errors import HistoryError, TokenRefusedError, TokenScopeError
from trainflow.service.asgi import read_header, read_peer
from trainflow.service.history import records
from trainflow.service.history.records import Token
from trainflow.service.history.tokens import require_scope
from trainflow.service.host_checks import check_host, check_origin
from trainflow.service.page.files import PAGE_PATHS
from trainflow.service.permits import Permit
from trainflow.service.problem_responses import respond
from trainflow.service.problems import ProblemError, ProblemType, as_problem
from trainflow.service.rate_limits import RateLimit
from trainflow.service.settings import ServiceSettings, is_loopback

logger = logging.getLogger(__name__)

OPEN_PATHS = PAGE_PATHS | {"/healthz", "/readyz", "/openapi.json"}
"""What is answered without a token: nothing of jobs is told there."""

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_MINUTE_S = 60.0
_MOST_WELCOME = 10_000
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="trainflow"'}

_PROXYS = (b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via")

CheckToken = Callable[[str], Token]


@dataclass(frozen=True)
class Caller:
    """Who asks.

    Attributes:
        token: that was sent; None where none is needed.
        permit: for an answer that goes on; None where no token is needed.
    """

    token: Token | None
    permit: Permit | None = None

    @property
    def owner(self) -> str:
        """What idempotency keys of this caller go by."""
        return "" if self.token is None else self.token.token_id


def find_permit(scope: Scope) -> Permit | None:
    """Return what an answer that goes on needs; None if it needs none."""
    caller: Caller | None = scope.get("state", {}).get("caller")
    return None if caller is None else caller.permit


def needed_scope(method: str) -> records.Scope:
    """Return what a token must allow for a request. Pure."""
    return records.Scope.READ if method in _READING else records.Scope.SUBMIT


def read_bearer(authorization: str | None) -> str:
    """Return the token in an Authorization header. Pure.

    Raises:
        ProblemError: UNAUTHENTICATED.
    """
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        got = "nothing" if authorization is None else f"the scheme {scheme[:20]!r}"
        raise ProblemError(
            ProblemType.UNAUTHENTICATED,
            f"Authorization: got {got}, expected Bearer and a token; make one with "
            "`trainflow token create`",
            headers=_CHALLENGE,
        )
    return token.strip()


class Welcome:
    """Which tokens were let in lately, by their hashes: others from their address don't stop them.

    Many clients may share an address, as behind a proxy; one with a token that has expired must not
    shut out all the others.
    """

    def __init__(self) -> None:
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, secret: str) -> bool:
        return _digest(secret) in self._digests

    def add(self, secret: str) -> None:
        """Keep a token; of very many those are forgotten that were let in longest ago."""
        self._digests[_digest(secret)] = None
        self._digests.move_to_end(_digest(secret))
        if len(self._digests) > _MOST_WELCOME:
            self._digests.popitem(last=False)

    def remove(self, secret: str) -> None:
        """Forget a token, if it is known: it was refused."""
        self._digests.pop(_digest(secret), None)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


class Admission:
    """ASGI middleware. Leaves the `Caller` in the request's state."""

    def __init__(
        self, app: ASGIApp, settings: ServiceSettings, check_token: CheckToken, clock: Clock
    ):
        self._app = app
        self._settings = settings
        self._check_token = check_token
        self._clock = clock
        limits = settings.limits
        self._requests = RateLimit(limits.requests_per_s, limits.burst)
        self._refusals = RateLimit(
            limits.refusals_per_minute / _MINUTE_S, limits.refusals_per_minute
        )
        self._unnamed = RateLimit(
            limits.refusals_per_minute / _MINUTE_S, limits.refusals_per_minute
        )
        self._welcome = Welcome()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on that may be answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._admit(scope)
        except ProblemError as error:
            await respond(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, _uncached(send))

    async def _admit(self, scope: Scope) -> Caller:
        http = self._settings.http
        host, origin = read_header(scope, b"host"), read_header(scope, b"origin")
        check_host(host, {*http.allowed_hosts, http.host})
        check_origin(origin, host, http.allowed_origins)
        peer = read_peer(scope)
        if not self._settings.needs_tokens:
            _require_local(peer)
            _require_no_proxy(scope)
            self._count(f"peer {peer}")
            return Caller(None)
        if scope["path"] in OPEN_PATHS:
            return Caller(None)
        secret = self._find_secret(scope, peer)
        token = await self._authenticate(secret, peer)
        self._count(f"token {token.token_id}")
        try:
            require_scope(token, needed_scope(scope["method"]))
        except TokenScopeError as error:
            raise ProblemError(ProblemType.FORBIDDEN, str(error)) from error
        return Caller(token, Permit(partial(self._check_token, secret), self._clock))

    def _find_secret(self, scope: Scope, peer: str | None) -> str:
        try:
            return read_bearer(read_header(scope, b"authorization"))
        except ProblemError:
            wait_s = self._unnamed.take(f"{peer}", self._clock.monotonic_s())
            if wait_s > 0:
                raise self._too_many_refused("requests without a token", wait_s) from None
            raise

    async def _authenticate(self, secret: str, peer: str | None) -> Token:
        wait_s = self._refusals.wait_s(f"{peer}", self._clock.monotonic_s())
        if wait_s > 0 and secret not in self._welcome:
            raise self._too_many_refused("refused tokens", wait_s)
        try:
            token = await to_thread.run_sync(self._check_token, secret)
        except TokenRefusedError as error:
            self._welcome.remove(secret)
            self._refusals.take(f"{peer}", self._clock.monotonic_s())
            raise ProblemError(
                ProblemType.UNAUTHENTICATED, str(error), headers=_CHALLENGE
            ) from error
        except HistoryError as error:
            raise as_problem(error) from error
        self._welcome.add(secret)
        return token

    def _too_many_refused(self, what: str, wait_s: float) -> ProblemError:
        per_s = self._settings.limits.refusals_per_minute / _MINUTE_S
        return _too_many(what, per_s, wait_s)

    def _count(self, client: str) -> None:
        wait_s = self._requests.take(client, self._clock.monotonic_s())
        if wait_s > 0:
            raise _too_many("requests", self._settings.limits.requests_per_s, wait_s)


def _uncached(send: Send) -> Send:
    """Have no cache keep what is told: it is of this moment, and for this caller."""

    async def send_uncached(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).setdefault("Cache-Control", "no-store")
        await send(message)

    return send_uncached


def _require_local(peer: str | None) -> None:
    """Refuse who is not on this machine, whatever the address listened at turns out to reach."""
    if peer is None or not is_loopback(peer):
        raise ProblemError(
            ProblemType.NOT_LOCAL,
            f"client: got {peer}, expected one on this machine, since authentication is off; set "
            "authentication to tokens",
        )


def _require_no_proxy(scope: Scope) -> None:
    """Refuse what a proxy on this machine has passed on: whom for isn't known."""
    for name in _PROXYS:
        if read_header(scope, name) is not None:
            raise ProblemError(
                ProblemType.NOT_LOCAL,
                f"client: got a request with the header {name.decode().title()}, which a proxy has "
                "passed on, expected one straight from this machine, since authentication is off; "
                "set authentication to tokens, or take the proxy away",
            )


def _too_many(what: str, per_s: float, wait_s: float) -> ProblemError:
    retry_after_s = max(1, math.ceil(wait_s))
    return ProblemError(
        ProblemType.TOO_MANY_REQUESTS,
        f"{what}: got too many, expected at most {per_s:g} a second; wait {retry_after_s} s",
        headers={"Retry-After": str(retry_after_s)},
    )
