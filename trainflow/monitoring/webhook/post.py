"""Post one document to an address. What goes wrong never names more of the address than its host.

Process: coordinator.  Thread: the sender's.  Blocks: until there is an answer, or the time is up.
"""

import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from trainflow.config.webhook import WebhookConfig, check_webhook_url
from trainflow.errors import TrainFlowError
from trainflow.monitoring.webhook.backoff import may_pass

Post = Callable[[bytes], None]
"""Posts a document; raises `PostError`."""


class PostError(TrainFlowError):
    """A document was not taken, for example since the server refuses connections.

    Attributes:
        may_pass: whether it may be taken later, as it is.
    """

    def __init__(self, text: str, *, may_pass: bool = False):
        super().__init__(text)
        self.may_pass = may_pass


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A server that sends us elsewhere is not followed: the token is for this one."""

    def redirect_request(self, *_args: object, **_named: object) -> None:
        return None


class WebhookPost:
    """Posts to the address of a webhook's settings; its files are read each time."""

    def __init__(self, settings: WebhookConfig):
        self._settings = settings
        self._opener = urllib.request.build_opener(_NoRedirects)

    def __call__(self, document: bytes) -> None:
        """Post a document, as JSON.

        Raises:
            PostError: it was not taken.
        """
        url = self._find_url()
        request = urllib.request.Request(url, document, self._make_headers(), method="POST")
        try:
            with self._opener.open(request, timeout=self._settings.timeout_s):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            text = f"{_name(url)} answered {error.code}"
            raise PostError(text, may_pass=may_pass(error.code)) from None
        except (OSError, HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            cause = type(reason if isinstance(reason, Exception) else error).__name__
            raise PostError(f"{_name(url)}: {cause}", may_pass=True) from None

    def _find_url(self) -> str:
        file = self._settings.url_file
        if file is None:
            assert self._settings.url is not None, "the settings have one of both"
            return self._settings.url
        try:
            return check_webhook_url(_read_secret(file))
        except ValueError:
            text = f"{file}: got no address, expected one, as https://alerts.example.org/x"
            raise PostError(text, may_pass=True) from None

    def _make_headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "User-Agent": "trainflow"}
        if self._settings.token_file is not None:
            headers["Authorization"] = f"Bearer {_read_token(self._settings.token_file)}"
        return headers


def _read_token(file: str) -> str:
    token = _read_secret(file)
    if not token or not token.isascii() or not token.isprintable():
        raise PostError(f"{file}: got no token, expected one line of ASCII", may_pass=True)
    return token


def _read_secret(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        text = f"{file} can't be read where the coordinator runs: {type(error).__name__}"
        raise PostError(text, may_pass=True) from None


def _name(url: str) -> str:
    """Return what of an address may be told: a path or a query is often a secret."""
    return urlsplit(url).hostname or "the webhook"
