from pathlib import Path

import pytest

from trainflow.data.source import DocumentReader, find_documents
from trainflow.errors import DataError


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_directory_gives_its_files_sorted_without_hidden_ones(tmp_path: Path) -> None:
    names = ["b.txt", "a/z.txt", "a/y.txt", ".git/x.txt", ".hidden"]
    for name in names:
        write(tmp_path / name, b"text")
    found = [str(path.relative_to(tmp_path)) for path in find_documents(str(tmp_path))]
    assert found == ["a/y.txt", "a/z.txt", "b.txt"]


def test_a_glob_gives_the_files_it_matches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ["b.txt", "a/z.txt", "a/y.md"]:
        write(tmp_path / name, b"text")
    absolute = find_documents(f"{tmp_path}/**/*.txt")
    assert absolute == [tmp_path / "a/z.txt", tmp_path / "b.txt"]
    monkeypatch.chdir(tmp_path)
    assert find_documents("*/*.md") == [Path("a/y.md")]


def test_a_file_gives_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "one.txt", b"text")
    assert find_documents(str(path)) == [path]


def test_the_standard_library_is_there_without_what_is_installed_or_tests() -> None:
    files = find_documents("stdlib")
    names = {path.name for path in files}
    assert {"argparse.py", "dataclasses.py"} <= names
    assert not any({"site-packages", "test"} & set(path.parts) for path in files)


@pytest.mark.parametrize("source", ["absent", "absent/*.txt", "s3://bucket/texts"])
def test_a_source_that_is_not_there_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(DataError, match="nothing to pack at"):
        find_documents(str(tmp_path / source))


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file there"):
        find_documents(str(tmp_path))


def test_documents_are_read_up_to_the_bound_and_counted(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, b"12345678") for name in ("a", "b", "c")]
    reader = DocumentReader(paths, max_bytes=12)
    assert list(reader) == ["12345678", "1234"]
    assert (reader.num_documents, reader.num_bytes) == (2, 12)


def test_the_bound_may_fall_inside_a_character(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a", "abé".encode()), write(tmp_path / "b", b"rest")]
    assert list(DocumentReader(paths, max_bytes=3)) == ["ab"]


@pytest.mark.parametrize("content", [b"\xff\xfe text", b"broken \xc3", b"\x7fELF\0\0"])
def test_what_is_not_text_is_skipped_and_counted(tmp_path: Path, content: bytes) -> None:
    paths = [write(tmp_path / "a", content), write(tmp_path / "b", b"text")]
    reader = DocumentReader(paths, max_bytes=None)
    assert list(reader) == ["text"]
    assert (reader.num_documents, reader.num_skipped_documents, reader.num_bytes) == (1, 1, 4)


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.txt can't be read"):
        list(DocumentReader([tmp_path / "gone.txt"], max_bytes=None))
