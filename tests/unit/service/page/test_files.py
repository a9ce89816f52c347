"""What the live page consists of, read as text."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.noted_export import NotedExport
from trainflow.coordination.goodput_watch import GoodputWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.status import build_status
from trainflow.service import page
from trainflow.service.page.files import PARTS, PageFile, load_page

STATIC = Path(page.__path__[0]) / "static"
MAX_LINES = 400
FILES = sorted(STATIC.iterdir())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]

# What would let text of a job be read as a part of the page.
READS_TEXT_AS_CODE = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\.srcdoc"
)
NAMESPACE = "http://www.w3.org/2000/svg"


def imports_of(source: str) -> set[str]:
    return set(re.findall(r'from "\./([^"]+)"', source))


def test_every_file_is_listed():
    assert {path.name for path in FILES} == PARTS | {"index.html"}


def test_every_file_is_loaded_as_what_it_is():
    loaded = load_page()
    assert loaded["/"].media_type == "text/html"
    assert loaded["/page/main.js"].media_type == "text/javascript"
    assert loaded["/page/main.js"].body == (STATIC / "main.js").read_bytes()
    assert len({file.etag for file in loaded.values()}) == len(FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_small_and_needs_nothing_from_elsewhere(path: Path):
    source = path.read_text(encoding="utf-8")
    assert source.count("\n") <= MAX_LINES
    assert not re.search(r"https?://|//cdn", source.replace(NAMESPACE, ""))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_reads_no_text_as_code_and_imports_what_is_there(path: Path):
    source = path.read_text(encoding="utf-8")
    assert not READS_TEXT_AS_CODE.search(source)
    assert imports_of(source) <= PARTS


def publish_status(directory: Path) -> dict[str, Any]:
    """Return a status as a coordinator publishes it, as far as the page may read it."""
    record = RunRecord(directory, FakeClock())
    control: Any = SimpleNamespace(members=(), num_spares=0, epoch=None, incarnation=1)
    checkpoints: Any = SimpleNamespace(newest=None, skipped=SimpleNamespace(total=0))
    status = build_status("lm-abc234", make_job(), control, record, checkpoints)
    ledger = GoodputWatch(record, NotedExport(), FakeClock()).describe()
    return status | {"goodput": ledger}


def test_of_a_status_scripts_read_what_coordinators_publish(tmp_path: Path):
    status = publish_status(tmp_path)
    read = {
        (name, inner)
        for path in SCRIPTS
        for name, inner in re.findall(
            r"\bstatus\??\.(\w+)(?:\?\.(\w+))?", path.read_text(encoding="utf-8")
        )
    }
    assert ("goodput", "ratio") in read
    assert {name for name, _ in read} <= status.keys()
    assert all(inner in status[name] for name, inner in read if inner)


def test_every_script_is_used():
    used = {"main.js"}.union(*(imports_of(path.read_text(encoding="utf-8")) for path in SCRIPTS))
    assert used == {path.name for path in SCRIPTS}


def test_no_script_imports_itself_by_way_of_others():
    imports = {path.name: imports_of(path.read_text(encoding="utf-8")) for path in SCRIPTS}
    while imports:
        leaves = {name for name, needed in imports.items() if not needed & imports.keys()}
        assert leaves, f"a circle among {sorted(imports)}"
        imports = {name: needed for name, needed in imports.items() if name not in leaves}


def test_the_document_holds_no_script_and_no_style():
    source = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|style=|\bon\w+=|<script(?![^>]*\bsrc=)", source)


@pytest.mark.parametrize(
    ("header", "is_known"),
    [
        ('"abc"', True),
        ('W/"abc"', True),
        ('"x", "abc"', True),
        ("*", True),
        (None, False),
        ("", False),
        ('"abcd"', False),
    ],
)
def test_a_browser_says_what_it_has(header: str | None, is_known: bool):  # noqa: FBT001  a row
    assert PageFile(b"", "text/css", '"abc"').is_known_by(header) == is_known
