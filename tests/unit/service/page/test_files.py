"""What the live page consists of, read as text."""

import re
from pathlib import Path

import pytest

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
