"""Grafana's HTTP API, as far as it is needed, by the package ``grafana-api``.

That package has folders, dashboards and data sources; rules of alerts, which are younger than it,
go through its low-level client. https://grafana.com/docs/grafana/latest/developers/http_api

Process: any.  Blocks: until Grafana answers; `TIMEOUT_S` at most while nothing is heard of it.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import quote, urlsplit

from trainflow.config.webhook import check_grafana_url
from trainflow.errors import ConfigError, GrafanaError, UnreachableError

TIMEOUT_S = 15.0
_MOST_SHOWN = 200

Json = dict[str, Any]


class Grafana:
    """One Grafana, and who asks it."""

    def __init__(self, url: str, token: str):
        """Begin; nothing is asked yet.

        Args:
            url: where it is, with the prefix of its path if it has one.
            token: of a service account.

        Raises:
            ConfigError: the address is none, or the package is missing.
        """
        try:
            parts = urlsplit(check_grafana_url(url))
        except ValueError:
            raise ConfigError(
                "--url: got no address of a Grafana, expected one without a name and a password, "
                "or anything after its path, as https://grafana.example.org; change --url"
            ) from None
        assert parts.hostname is not None, "it was checked"
        self._name = parts.hostname
        prefix = parts.path.strip("/")
        self._face: Any = _load_face()(
            auth=token,
            host=f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname,
            port=parts.port,
            url_path_prefix=f"{prefix}/" if prefix else "",
            protocol=parts.scheme,
            timeout=TIMEOUT_S,
        )
        # Nobody is followed elsewhere: what was to be written would be read there.
        self._face.api.s.max_redirects = 0

    def list_sources(self) -> list[Json]:
        """Return the data sources."""
        found = self._ask(lambda face: face.datasource.list_datasources())
        self._require(is_so=isinstance(found, list))
        for each in found:
            self._require(is_so=_has(each, str, "type", "name", "uid"))
        return found

    def find_folder(self, uid: str) -> Json | None:
        """Return a folder; None if there is none."""
        found = self._find(lambda face: face.folder.get_folder(uid))
        self._require(is_so=found is None or _has(found, str, "title"))
        return found

    def make_folder(self, uid: str, title: str) -> None:
        """Make a folder."""
        self._ask(lambda face: face.folder.create_folder(title, uid))

    def rename_folder(self, uid: str, title: str) -> None:
        """Give a folder another title."""
        self._ask(lambda face: face.folder.update_folder(uid, title, overwrite=True))

    def find_dashboard(self, uid: str) -> Json | None:
        """Return a dashboard with what Grafana knows of it; None if there is none."""
        found = self._find(lambda face: face.dashboard.get_dashboard(uid))
        self._require(is_so=found is None or _has(found, dict, "dashboard", "meta"))
        return found

    def save_dashboard(self, dashboard: Json, folder: str, message: str) -> None:
        """Make a dashboard, or replace the one with its uid."""
        document = {"dashboard": dashboard | {"id": None}, "folderUid": folder}
        document |= {"overwrite": True, "message": message}
        self._ask(lambda face: face.dashboard.update_dashboard(document))

    def find_rules(self, folder: str, group: str) -> Json | None:
        """Return a group of rules of alerts; None if there is none."""
        found = self._find(lambda face: face.api.GET(_group_path(folder, group)))
        self._require(is_so=found is None or _has(found, list, "rules"))
        return found

    def save_rules(self, folder: str, group: str, rules: Json) -> None:
        """Make a group of rules of alerts, or replace the one of that name."""
        self._ask(lambda face: face.api.PUT(_group_path(folder, group), json=rules))

    def _require(self, *, is_so: bool) -> None:
        """Refuse what a Grafana would not answer."""
        if not is_so:
            raise GrafanaError(
                f"{self._name}: got an answer of another form, expected Grafana's; change --url"
            )

    def _find(self, call: Callable[[Any], Any]) -> Any:  # noqa: ANN401  JSON
        return self._ask(call, absent_is_none=True)

    def _ask(self, call: Callable[[Any], Any], *, absent_is_none: bool = False) -> Any:  # noqa: ANN401
        from grafana_api.grafana_api import GrafanaException  # noqa: PLC0415  an extra
        from requests import RequestException, TooManyRedirects  # noqa: PLC0415  comes with that

        try:
            return call(self._face)
        except GrafanaException as error:
            status = cast("int", error.status_code)
            if absent_is_none and status == HTTPStatus.NOT_FOUND:
                return None
            raise GrafanaError(_explain(self._name, status, _shorten(str(error)))) from None
        except (ValueError, TypeError, RecursionError):  # what the package raises at odd answers
            raise GrafanaError(
                f"{self._name}: got an answer that is no JSON, expected Grafana's; change --url"
            ) from None
        except TooManyRedirects:
            raise GrafanaError(
                f"{self._name}: got a redirect, expected Grafana itself; change --url to where it "
                "leads: is it https, or has it a prefix?"
            ) from None
        except RequestException as error:
            raise UnreachableError(
                f"{self._name}: got no answer ({type(error).__name__}), expected Grafana; change "
                "--url, or start it"
            ) from None


def _load_face() -> Any:  # noqa: ANN401  has no types
    try:
        from grafana_api.grafana_face import GrafanaFace  # noqa: PLC0415  an extra
    except ImportError:
        raise ConfigError(
            "trainflow dashboards publish: expected the package grafana-api; pip install "
            "'trainflow[grafana]'"
        ) from None
    return GrafanaFace


def _group_path(folder: str, group: str) -> str:
    return f"/v1/provisioning/folder/{quote(folder, safe='')}/rule-groups/{quote(group, safe='')}"


def _has(answer: object, kind: type, *names: str) -> bool:
    """Whether an answer is an object whose fields of these names are of a kind."""
    if not isinstance(answer, dict):
        return False
    fields = cast("Json", answer)
    return all(isinstance(fields.get(name), kind) for name in names)


def _shorten(text: str) -> str:
    """Return what a server has said as one short line: of a proxy it is often a page."""
    line = "".join(each if each.isprintable() else " " for each in text)
    return line if len(line) <= _MOST_SHOWN else f"{line[:_MOST_SHOWN]}..."


def _explain(name: str, status: int, message: str) -> str:
    """Say what Grafana refused, and what to change."""
    if status == HTTPStatus.UNAUTHORIZED:
        return f"{name}: got a token that is refused, expected one of a service account; make one"
    if status == HTTPStatus.FORBIDDEN:
        role = "Editor, or Admin for alerts before Grafana 11"
        return f"{name}: got a token that may not do this, expected the role {role}: {message}"
    if status == HTTPStatus.NOT_FOUND:
        change = "change --url, whose prefix may be missing, or take a Grafana of 10 or later"
    elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        change = "look at Grafana's log, and publish again: what is done stays"
    else:
        change = "change what it names there, and publish again: what is done stays"
    return f"{name}: got {message}, expected that Grafana takes this; {change}"
