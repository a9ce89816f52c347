"""Which files the live page consists of, and what a browser is told of them.

Process: a replica of the service.  Pure, but for `load_page`, which reads files of this package.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePosixPath
from types import MappingProxyType

_MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_INDEX = "index.html"
PARTS = frozenset(
    {
        "api.js",
        "chart.css",
        "chart.js",
        "chart_marks.js",
        "chart_table.js",
        "dom.js",
        "event_list.js",
        "event_stream.js",
        "first_look.js",
        "format.js",
        "icon.svg",
        "job_charts.js",
        "job_figures.js",
        "job_state.js",
        "job_tables.js",
        "job_view.js",
        "jobs_view.js",
        "log_choice.js",
        "log_lines.js",
        "log_view.js",
        "main.js",
        "notices.js",
        "pacing.js",
        "recoveries.js",
        "scale.js",
        "series.js",
        "style.css",
        "token_view.js",
    }
)
"""Files that the page loads."""

PAGE_PATHS = frozenset({"/", *(f"/page/{name}" for name in PARTS)})
"""Where they are served. They hold nothing of jobs, so nobody needs a token for them."""

HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": (
            "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
)
"""What a browser is told with each of them: to run only what comes from here, to be shown in no
other page, and to ask whether a file is still the same before it is used again."""


@dataclass(frozen=True)
class PageFile:
    """One file.

    Attributes:
        body: its bytes.
        media_type: what they are.
        etag: differs if they do.
    """

    body: bytes
    media_type: str
    etag: str

    def is_known_by(self, if_none_match: str | None) -> bool:
        """Whether a browser has this very file.

        Args:
            if_none_match: the header, as the browser has sent it. A proxy that compresses marks
                tags as weak.
        """
        known = {tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")}
        return self.etag in known or "*" in known


def load_page() -> Mapping[str, PageFile]:
    """Return the files by the path at which each is served."""
    found = {f"/page/{name}": _load(name) for name in PARTS}
    return MappingProxyType({"/": _load(_INDEX), **found})


def _load(name: str) -> PageFile:
    body = (resources.files(__name__.rpartition(".")[0]) / "static" / name).read_bytes()
    digest = hashlib.sha256(body).hexdigest()[:32]
    return PageFile(body, _MEDIA_TYPES[PurePosixPath(name).suffix], f'"{digest}"')
