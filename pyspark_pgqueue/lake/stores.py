"""A lake's storage, a directory or an object store, and how files are published there.

A file is written where no reader sees it, and becomes visible when its run is published. S3 keeps
the parts of an upload until any process completes the upload. Publishing a file completes its
upload, without a rename or a copy. In other stores a file is written below ``_staging`` and then
moved.

Credentials come from the machine: its environment, profile or role. An address never contains them,
since it is stored in the database and shown in logs and in the admin.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from pyspark_pgqueue.errors import InvalidOption, LakeDiffers, StoreFailed

STAGING = "_staging"
#: Bytes in a part of an upload. S3 requires at least 5 MB per part, and at most 10,000 parts.
PART = 8 * 1024 * 1024
S3 = "s3"

#: A file that is not published: its path ``to``, and what the store needs to publish it.
File = dict[str, Any]


class Sink(Protocol):
    """A file being written."""

    closed: bool

    def write(self, data: Any) -> int: ...
    def tell(self) -> int: ...
    def close(self) -> None: ...


def address(path: str) -> str:
    """Normalise an address: ``s3://`` for Hadoop's ``s3a://``, and no trailing slash.

    >>> address("s3a://bucket/lake/")
    's3://bucket/lake'

    Raises InvalidOption if the address contains credentials or settings.
    """
    if "://" not in path:
        return os.path.abspath(path)
    scheme, _, rest = path.rstrip("/").partition("://")
    if scheme in {"s3a", "s3n"}:
        scheme = S3
    # The address is not shown, since it may contain a password.
    if urlsplit(path).password is not None or "?" in rest or (scheme == S3 and "@" in rest):
        raise InvalidOption(
            "A lake's address must not contain credentials or settings, since it is stored in the "
            "database and logged. Put them into the environment of the driver and of the "
            "executors (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL), or into "
            "a profile, or give the machines a role."
        )
    return f"{scheme}://{rest}"


def key_of(place: str, key: str) -> str:
    """Return the value of a key in a path of a lake, or an empty string.

    >>> key_of("archive/queue=orders/date=2026-11-21/run-7.parquet", "queue")
    'orders'
    """
    return place.partition(f"/{key}=")[2].partition("/")[0]


# Words in the errors of disks, boto3 and pyarrow, and the advice for each group of words.
_ADVICE = (
    (
        ("bucket does not exist", "NoSuchBucket", "NO_SUCH_BUCKET"),
        "Create the bucket, or correct the address",
    ),
    (
        ("redentials", "AccessKeyId", "ACCESS_KEY", "ignature", "SIGNATURE", "Token", "TOKEN"),
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY on the driver and the executors, or give "
        "them a profile or a role",
    ),
    (
        ("AccessDenied", "ACCESS_DENIED", "Forbidden", "Permission denied", "not permitted"),
        "Grant this user the right to write, list and delete there",
    ),
    (
        ("Could not connect", "onnection", "NETWORK_CONNECTION", "timed out", "resolve host"),
        "Check the address and AWS_ENDPOINT_URL, and whether the store is running",
    ),
    (("No space left", "quota"), "Free space there, or export to another path"),
    (("Read-only",), "Mount it for writing, or export to another path"),
    (("Not a directory", "File exists"), "Choose a directory"),
)


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Turn the store's errors in the block into StoreFailed, with advice."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError) and not type(error).__module__.startswith("botocore"):
            raise
        told = " ".join(str(error).split())
        advice = [each for words, each in _ADVICE if any(word in told for word in words)]
        rest = f" {advice[0]}." if advice else ""
        raise StoreFailed(f"The lake {path} cannot be used: {told.rstrip('.')}.{rest}") from error


def open_at(path: str) -> Store:
    """Return the store for an address. Raises InvalidOption if no store supports it."""
    path = address(path)
    if "://" not in path:
        return Store(fs.LocalFileSystem(), path)
    try:
        filesystem, root = fs.FileSystem.from_uri(path)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        filesystem, root = _by_fsspec(path, error)
    return (Uploads if path.startswith(f"{S3}://") else Store)(filesystem, root.rstrip("/"))


def _by_fsspec(path: str, error: Exception) -> tuple[fs.FileSystem, str]:
    try:
        import fsspec

        filesystem, root = fsspec.url_to_fs(path)
    except (ImportError, ValueError):
        raise InvalidOption(
            f"No installed package supports the lake's address {path}. Use a path, file://, s3://, "
            f"gs://, abfs:// or hdfs://, or install the store's package for fsspec. ({error})"
        ) from None
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), root


class Store:
    """Files below a root, named by relative paths. New files are written to staging and moved."""

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self.filesystem, self.root = filesystem, root

    def create(self, place: str) -> Sink:
        """Open a new file for writing."""
        staged = self.path(f"{STAGING}/{place}")
        self.filesystem.create_dir(staged.rpartition("/")[0], recursive=True)
        sink: Sink = self.filesystem.open_output_stream(staged)
        return sink

    def written(self, place: str, sink: Sink) -> File:
        """Describe a closed file, for publishing."""
        return {"to": place}

    def abandon(self, place: str, sink: Sink) -> None:
        """Delete an unpublished file."""
        sink.close()
        self.filesystem.delete_file(self.path(f"{STAGING}/{place}"))

    def publish(self, files: Iterable[File]) -> None:
        """Make files visible. Publishing them again changes nothing."""
        for file in files:
            source, target = self.path(f"{STAGING}/{file['to']}"), self.path(file["to"])
            if self.exists(source):
                self.filesystem.create_dir(target.rpartition("/")[0], recursive=True)
                self.filesystem.move(source, target)
            elif not self.exists(target):
                raise _lost(source, target)

    def sweep(self, below: str) -> None:
        """Delete the unpublished files of a directory."""
        self.delete(f"{STAGING}/{below}")

    def delete(self, directory: str) -> None:
        """Delete a directory and its contents, if it exists."""
        if self.exists(self.path(directory)):
            self.filesystem.delete_dir(self.path(directory))

    def remove(self, places: Iterable[str]) -> None:
        """Delete files, ignoring missing ones."""
        for place in places:
            if self.exists(self.path(place)):
                self.filesystem.delete_file(self.path(place))

    def files(self, directory: str) -> dict[str, list[fs.FileInfo]]:
        """The published files below a directory, by subdirectory."""
        selector = fs.FileSelector(self.path(directory), recursive=True, allow_not_found=True)
        found: dict[str, list[fs.FileInfo]] = {}
        for info in sorted(self.filesystem.get_file_info(selector), key=lambda info: info.path):
            if info.type == fs.FileType.File and info.extension == "parquet":
                found.setdefault(self.place(info).rpartition("/")[0], []).append(info)
        return found

    def place(self, info: fs.FileInfo) -> str:
        """A file's path relative to the root."""
        return str(info.path).removeprefix(f"{self.root}/")

    def path(self, place: str) -> str:
        return f"{self.root}/{place}"

    def exists(self, path: str) -> bool:
        return bool(self.filesystem.get_file_info(path).type != fs.FileType.NotFound)


class Uploads(Store):
    """S3 and compatible stores: a file is a multipart upload, and publishing completes the upload.

    Files are read with pyarrow. They are not written with it, since closing a file would complete
    the upload.
    """

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        super().__init__(filesystem, root)
        try:
            import boto3
        except ImportError as error:
            raise InvalidOption(
                f"A lake at {S3}:// needs boto3, on the driver and on the executors: "
                f'pip install "django-postgres-mq[spark,s3]"'
            ) from error
        self.client = boto3.client(S3)
        self.bucket = root.partition("/")[0]

    def create(self, place: str) -> Sink:
        return Upload(self.client, self.bucket, self.key(place))

    def written(self, place: str, sink: Sink) -> File:
        assert isinstance(sink, Upload)
        return {"to": place, "upload": sink.id, "parts": sink.parts}

    def abandon(self, place: str, sink: Sink) -> None:
        assert isinstance(sink, Upload)
        sink.closed = True
        self._abort(self.key(place), sink.id)

    def publish(self, files: Iterable[File]) -> None:
        for file in files:
            parts = [{"ETag": tag, "PartNumber": n} for n, tag in enumerate(file["parts"], 1)]
            try:
                self.client.complete_multipart_upload(
                    Bucket=self.bucket,
                    Key=self.key(file["to"]),
                    UploadId=file["upload"],
                    MultipartUpload={"Parts": parts},
                )
            except self.client.exceptions.NoSuchUpload:
                if not self.exists(self.path(file["to"])):
                    raise _lost(f"the upload of {file['to']}", self.path(file["to"])) from None

    def sweep(self, below: str) -> None:
        pages = self.client.get_paginator("list_multipart_uploads")
        for page in pages.paginate(Bucket=self.bucket, Prefix=f"{self.key(below)}/"):
            for upload in page.get("Uploads", []):
                self._abort(upload["Key"], upload["UploadId"])

    def key(self, place: str) -> str:
        return self.path(place).partition("/")[2]

    def _abort(self, key: str, upload: str) -> None:
        with suppress(self.client.exceptions.NoSuchUpload):  # another process completed it
            self.client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload)


class Upload:
    """A multipart upload, as a file object for pyarrow."""

    def __init__(self, client: Any, bucket: str, key: str) -> None:
        self.client = client
        self.where = {"Bucket": bucket, "Key": key}
        self.id: str = client.create_multipart_upload(**self.where)["UploadId"]
        self.parts: list[str] = []
        self.closed = False
        self._held = bytearray()
        self._sent = 0

    def write(self, data: Any) -> int:
        self._held += data
        while len(self._held) >= PART:
            self._send(bytes(self._held[:PART]))
            del self._held[:PART]
        return len(data)

    def tell(self) -> int:
        return self._sent + len(self._held)

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        """Do nothing: every part but the last must have 5 MB at least."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._send(bytes(self._held))
            self._held.clear()

    def _send(self, part: bytes) -> None:
        told = self.client.upload_part(
            **self.where, UploadId=self.id, PartNumber=len(self.parts) + 1, Body=part
        )
        self.parts.append(told["ETag"])
        self._sent += len(part)


def _lost(source: str, target: str) -> LakeDiffers:
    return LakeDiffers(
        f"The export run cannot be published: {source} should have become {target}, but neither "
        f"exists. Restore one of them, or export the lake again (--anew)."
    )
