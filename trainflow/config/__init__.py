"""The job file: its settings, how it is read, and the training function it names."""

from trainflow.config.entrypoint import ResolvedEntrypoint, import_function, resolve_entrypoint
from trainflow.config.job import JobConfig
from trainflow.config.loading import load_job

__all__ = ["JobConfig", "ResolvedEntrypoint", "import_function", "load_job", "resolve_entrypoint"]
