"""Objects in S3, and in what speaks its protocol.

Endpoint, credentials and region come from where every tool of AWS takes them: AWS_ENDPOINT_URL,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_DEFAULT_REGION, the files below ~/.aws, a role.

One client serves a process: its requests are made on one thread, fsspec's, and may be asked for
from any. Every one of them has a deadline, its retries included. Request checksums are left out
unless the environment asks for them, as many stores on premises refuse their newer forms: chunks
are verified by their names, manifests by their markers.

Process: keeper and coordinator write; drivers and workers read.  Threads: the caller's, fsspec's.
Blocks: on the store.
"""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, cast

import s3fs

from trainflow.checkpointing.bounded_calls import patience_s

PART_BYTES = 5 * 1024 * 1024
"""Of an upload in parts; objects of two parts and more are uploaded so."""

_PARTS_AT_A_TIME = 4
_NUM_CONNECTIONS = 16
_CONNECT_WITHIN_S = 5
_READ_WITHIN_S = 20
_REQUEST_ATTEMPTS = 3
_TRANSFER_ATTEMPTS = 2
_CONFLICT_ATTEMPTS = 4

_PRECONDITION_FAILED = 412
_CONFLICT = 409
_RANGE_NOT_SATISFIABLE = 416


class _UndecidedError(OSError):
    """Several write the same object at the moment, and the store doesn't say who wins."""


class S3Files:
    """See `trainflow.checkpointing.store_files.StoreFiles`; a path begins with its bucket."""

    def __init__(self) -> None:
        settings = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        self._files = _connect(os.getpid(), tuple(sorted(settings.items())))

    def read(self, path: str, at_most: int) -> bytes:
        """Return the first ``at_most`` bytes of an object."""
        with _telling_status():
            try:
                within_s = patience_s(at_most)
                data = self._files.cat_file(path, start=0, end=at_most, timeout=within_s)
                return data[:at_most]  # a server may ignore that only a part was asked for
            except OSError as error:
                if _status_of(error) == _RANGE_NOT_SATISFIABLE:
                    return b""  # there is an object, and nothing in it
                raise

    def read_into(self, path: str, memory: memoryview) -> int:
        """Fill memory with an object's first bytes."""
        data = self.read(path, len(memory))
        memory[: len(data)] = data
        return len(data)

    def size(self, path: str) -> int:
        """Return the bytes in an object."""
        with _telling_status():
            return self._request("head_object", path)["ContentLength"]

    def write_whole(self, path: str, data: memoryview | bytes) -> None:
        """Write an object, a large one in parts."""
        with _telling_status():
            self._files.pipe_file(
                path,
                bytes(data),
                chunksize=PART_BYTES,
                max_concurrency=_PARTS_AT_A_TIME,
                timeout=patience_s(len(data)),
            )

    def write_new(self, path: str, data: bytes) -> None:
        """Write an object of a new name, in one request: parts have no such condition everywhere.

        Another writer's request at the same moment may make a store say that it can't tell yet.
        """
        for _ in range(_CONFLICT_ATTEMPTS - 1):
            with suppress(_UndecidedError):
                return self._create(path, data)
        return self._create(path, data)

    def _create(self, path: str, data: bytes) -> None:
        try:
            with _telling_status():
                self._request("put_object", path, Body=data, IfNoneMatch="*")
        except OSError as error:
            status = _status_of(error)
            if status == _PRECONDITION_FAILED:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from error
            if status == _CONFLICT:
                raise _UndecidedError(*error.args) from error
            raise

    def names(self, folder: str) -> list[str]:
        """Return the names below a prefix."""
        try:
            with _telling_status():
                entries = self._files.ls(folder, detail=False, refresh=True, timeout=patience_s())
        except FileNotFoundError:
            return []
        return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries)

    def remove(self, path: str) -> None:
        """Remove an object."""
        with _telling_status():
            self._request("delete_object", path)

    def _request(self, method: str, path: str, **arguments: object) -> dict[str, Any]:
        bucket, _, key = path.partition("/")
        return self._files.call_s3(
            method, Bucket=bucket, Key=key, timeout=patience_s(), **arguments
        )


@lru_cache(maxsize=4)
def _connect(_pid: int, settings: tuple[tuple[str, str], ...]) -> Any:  # noqa: ANN401  s3fs has no annotations
    """Return the client of this process for these settings of its environment."""
    config: dict[str, Any] = {
        "connect_timeout": _CONNECT_WITHIN_S,
        "read_timeout": _READ_WITHIN_S,
        "max_pool_connections": _NUM_CONNECTIONS,
        "retries": {"mode": "standard", "total_max_attempts": _REQUEST_ATTEMPTS},
    }
    named = dict(settings)
    for setting in ("request_checksum_calculation", "response_checksum_validation"):
        if f"AWS_{setting.upper()}" not in named:
            config[setting] = "when_required"
    files = cast("Any", s3fs).S3FileSystem(
        config_kwargs=config,
        use_listings_cache=False,
        skip_instance_cache=True,  # fsspec keeps one for every thread, for ever
    )
    files.retries = _TRANSFER_ATTEMPTS  # on top of those above: of what breaks off half-way
    return files


@contextmanager
def _telling_status() -> Generator[None]:
    """Make an OSError of whatever goes wrong, which says what the store answered."""
    try:
        yield
    except TimeoutError as error:
        raise TimeoutError(errno.ETIMEDOUT, "no answer in time") from error
    except OSError as error:
        answer = _answer_of(error)
        if answer is None:
            raise
        told = answer.get("Error", {})
        if isinstance(error, FileNotFoundError) and told.get("Code") != "NoSuchBucket":
            raise
        parts = (_status_of(error), told.get("Code"), told.get("Message"))
        text = " ".join(dict.fromkeys(str(part) for part in parts if part))
        number = errno.EACCES if isinstance(error, PermissionError) else error.errno or errno.EIO
        raise OSError(number, text) from error.__cause__
    except Exception as error:  # also ValueError and KeyError, of settings and answers that are odd
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error


def _answer_of(error: BaseException) -> dict[str, Any] | None:
    """Return what the store answered, if that is what went wrong; s3fs keeps it as the cause."""
    cause: Any = error.__cause__
    answer = getattr(cause, "response", None)
    return cast("dict[str, Any]", answer) if isinstance(answer, dict) else None


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status of the answer."""
    answer = _answer_of(error) or {}
    return answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
