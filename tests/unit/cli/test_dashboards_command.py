"""Dashboards and rules, as a person writes and publishes them."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.testbed.grafana_server import EDITOR, serving_grafana
from tests.unit.cli.conftest import CallMain
from trainflow.cli.main import app
from trainflow.monitoring.deployment_files import render_files


def test_the_files_are_written_and_named(tmp_path: Path):
    folder = tmp_path / "made"
    done = CliRunner().invoke(app, ["dashboards", "write", str(folder)])
    assert done.exit_code == 0
    written = {p for p in folder.rglob("*") if p.is_file()}
    assert {str(p.relative_to(folder)): p.read_text() for p in written} == dict(render_files())
    assert all(str(path) in done.output.replace("\n", "") for path in written)


def test_a_place_where_nothing_can_be_written_is_refused(
    tmp_path: Path, call_main: CallMain, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").touch()
    for place in (Path("/proc/self/there"), tmp_path / "file", tmp_path / "file" / "below"):
        assert call_main("dashboards", "write", place) == 2
        said = capsys.readouterr().err
        assert f"folder: got {place}, where {place}/" in said
        assert "expected a folder that can be made and written" in said
        assert "Traceback" not in said


def test_dashboards_and_alerts_are_published(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text(f"{EDITOR}\n")
    with serving_grafana() as server:
        words = ("dashboards", "publish", "--url", server.url, "--token-file", str(token))
        first = CliRunner().invoke(app, [*words])
        again = CliRunner().invoke(app, [*words])
        assert (first.exit_code, again.exit_code) == (0, 0)
        assert len(server.dashboards) == 6
    assert "made      dashboard TrainFlow / Overview" in first.output
    assert "unchanged alerts trainflow-members" in again.output


def test_a_source_for_no_alerts_is_refused(
    tmp_path: Path, call_main: CallMain, capsys: pytest.CaptureFixture[str]
):
    words = ("--url", "http://127.0.0.1:1", "--token-file", tmp_path / "token")
    assert call_main("dashboards", "publish", *words, "--no-alerts", "--source", "Prom") == 2
    assert "--source: got Prom with --no-alerts" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"two words", b"two\nlines"])
def test_a_file_without_a_token_is_refused(
    content: bytes | None,
    tmp_path: Path,
    call_main: CallMain,
    capsys: pytest.CaptureFixture[str],
):
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    words = ("--url", "http://127.0.0.1:1", "--token-file", token)
    assert call_main("dashboards", "publish", *words) == 2
    said = capsys.readouterr().err
    assert "--token-file: got" in said
    assert "two" not in said
