"""Imports point down, and each room knows only the libraries it should."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_imports_keep_the_contracts():
    """In a process of its own: the linter switches off all loggers of the one that it runs in."""
    linter = Path(sys.executable).with_name("lint-imports")
    linted = subprocess.run(
        [linter, "--no-cache"], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("trainflow", ["ray", "torch", "pydantic"]),
        ("trainflow.errors", ["ray", "torch", "pydantic"]),
        ("trainflow.epochs", ["ray", "torch", "pydantic"]),
        ("trainflow.monitoring.metrics", ["ray", "torch"]),
        ("trainflow.config", ["ray", "torch", "transformers"]),
        ("trainflow.coordination.coordinator", ["torch", "transformers"]),
        ("trainflow.coordination.keeper", ["torch", "transformers"]),
        ("trainflow.communication.group", ["ray", "transformers"]),
        ("trainflow.computation.session", ["ray", "transformers"]),
        ("trainflow.cli.main", ["fastapi", "httpx", "ray", "sqlalchemy", "torch"]),
        ("trainflow.client", ["alembic", "fastapi", "ray", "sqlalchemy", "torch"]),
        ("trainflow.service.app", ["ray", "torch"]),
        ("trainflow.service.history.history", ["ray", "torch"]),
        ("trainflow.service.history.ingest", ["ray", "torch"]),
    ],
)
def test_importing_a_room_loads_no_more_than_it_needs(module: str, unwanted: list[str]):
    probe = f"import sys, {module}; print([n for n in {unwanted} if n in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
