"""Where a lake is, a directory or an object store, and how files appear there.

A file is written where no reader sees it, and appears when its run is published. S3 keeps the parts
of an upload until it is completed, by any process: publishing completes it, and nothing is renamed
or copied. Elsewhere a file is written below ``_staging`` and moved.

Credentials are those of the machine: the environment, a profile, or the role that it has. They are
not in an address, since that is in the database, in logs and on the admin's pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from pyspark_pgqueue.errors import InvalidOption, LakeDiffers

__all__ = ["STAGING", "File", "Sink", "Store", "address", "open_at"]

STAGING = "_staging"
#: Bytes of one part of an upload; S3 takes 5 MB at least, and 10,000 parts.
PART = 8 * 1024 * 1024
S3 = "s3"

#: The description of a file that is not published: its place ``to``, and how it gets there.
File = dict[str, Any]


class Sink(Protocol):
    """A file that is being written."""

    closed: bool

    def write(self, data: Any) -> int: ...
    def tell(self) -> int: ...
    def close(self) -> None: ...


def address(path: str) -> str:
    """One name for a place: ``s3://`` for Hadoop's ``s3a://``, and no slash at its end.

    >>> address("s3a://bucket/lake/")
    's3://bucket/lake'

    Raises InvalidOption for credentials and settings in it.
    """
    if "://" not in path:
        return os.path.abspath(path)
    scheme, _, rest = path.rstrip("/").partition("://")
    if scheme in {"s3a", "s3n"}:
        scheme = S3
    # Not shown: it may have a password.
    if urlsplit(path).password is not None or "?" in rest or (scheme == S3 and "@" in rest):
        raise InvalidOption(
            "An address of a lake has no credentials and no settings in it, since it is in the "
            "database and in logs. Put them into the environment of the driver and of the "
            "executors, as AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL, or into "
            "a profile, or give the machines a role."
        )
    return f"{scheme}://{rest}"


def open_at(path: str) -> Store:
    """The store of an address, and what is below it. Raises InvalidOption if there is none."""
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
            f"The lake cannot be at {path}: a path, file://, s3://, gs://, abfs:// and hdfs:// are "
            f"known to pyarrow, and others to fsspec with the package of the store. ({error})"
        ) from None
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), root


class Store:
    """Files below a root, by their places there; new ones are moved to theirs."""

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self.filesystem, self.root = filesystem, root

    def create(self, place: str) -> Sink:
        """A file that is not there yet."""
        staged = self.path(f"{STAGING}/{place}")
        self.filesystem.create_dir(staged.rpartition("/")[0], recursive=True)
        sink: Sink = self.filesystem.open_output_stream(staged)
        return sink

    def written(self, place: str, sink: Sink) -> File:
        """The description, for publishing, of a file that was closed."""
        return {"to": place}

    def abandon(self, place: str, sink: Sink) -> None:
        """Forget a file that was not published."""
        sink.close()
        self.filesystem.delete_file(self.path(f"{STAGING}/{place}"))

    def publish(self, files: Iterable[File]) -> None:
        """Make files appear; once more changes nothing."""
        for file in files:
            source, target = self.path(f"{STAGING}/{file['to']}"), self.path(file["to"])
            if self.exists(source):
                self.filesystem.create_dir(target.rpartition("/")[0], recursive=True)
                self.filesystem.move(source, target)
            elif not self.exists(target):
                raise _lost(source, target)

    def sweep(self, below: str) -> None:
        """Forget what is written ``below`` a place and not published."""
        self.delete(f"{STAGING}/{below}")

    def delete(self, directory: str) -> None:
        """Delete what is below a directory, if it is there."""
        if self.exists(self.path(directory)):
            self.filesystem.delete_dir(self.path(directory))

    def remove(self, places: Iterable[str]) -> None:
        """Delete files that may be gone already."""
        for place in places:
            if self.exists(self.path(place)):
                self.filesystem.delete_file(self.path(place))

    def files(self, directory: str) -> dict[str, list[fs.FileInfo]]:
        """The files that are published below a directory, by the directories it is in."""
        selector = fs.FileSelector(self.path(directory), recursive=True, allow_not_found=True)
        found: dict[str, list[fs.FileInfo]] = {}
        for info in sorted(self.filesystem.get_file_info(selector), key=lambda info: info.path):
            if info.type == fs.FileType.File and info.extension == "parquet":
                found.setdefault(self.place(info).rpartition("/")[0], []).append(info)
        return found

    def place(self, info: fs.FileInfo) -> str:
        """Where a file is, from the root on."""
        return str(info.path).removeprefix(f"{self.root}/")

    def path(self, place: str) -> str:
        return f"{self.root}/{place}"

    def exists(self, path: str) -> bool:
        return bool(self.filesystem.get_file_info(path).type != fs.FileType.NotFound)


class Uploads(Store):
    """S3, and what speaks its protocol: a file is an upload in parts, published as it is completed.

    pyarrow reads; its own writer completes each upload as it closes it.
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
        self.bucket, _, self.prefix = root.partition("/")

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
        return f"{self.prefix}/{place}" if self.prefix else place

    def _abort(self, key: str, upload: str) -> None:
        with suppress(self.client.exceptions.NoSuchUpload):  # another has done it
            self.client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload)


class Upload:
    """An upload in parts, as a file that pyarrow writes."""

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
        """Nothing to do: a part but the last has 5 MB at least."""

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
        f"{source} should appear as {target}, and neither is there. Restore it, or delete the run "
        f"in the database to export its span again."
    )
