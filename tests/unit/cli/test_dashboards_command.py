"""Dashboards and rules, as a person writes and publishes them."""

from pathlib import Path

from typer.testing import CliRunner

from trainflow.cli.main import app
from trainflow.monitoring.deployment_files import render_files


def test_the_files_are_written_and_named(tmp_path: Path):
    folder = tmp_path / "made"
    done = CliRunner().invoke(app, ["dashboards", "write", str(folder)])
    assert done.exit_code == 0
    written = {p for p in folder.rglob("*") if p.is_file()}
    assert {str(p.relative_to(folder)): p.read_text() for p in written} == dict(render_files())
    assert all(str(path) in done.output.replace("\n", "") for path in written)
