"""A progress bar for bytes that go to or come from the server; silent where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO


class Copying:
    """Counts the bytes of one copy."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance

    def __call__(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The same chunks, counted as they pass."""
        for chunk in chunks:
            yield chunk
            self._advance(len(chunk))

    def reading(self, file: BinaryIO) -> _Counted:
        """The file, counted as it is read."""
        return _Counted(file, self._advance)


class _Counted:
    """The part of a file object that an upload uses."""

    def __init__(self, file: BinaryIO, advance: Callable[[int], None]) -> None:
        self._file = file
        self._advance = advance

    def read(self, size: int = -1) -> bytes:
        chunk = self._file.read(size)
        self._advance(len(chunk))
        return chunk


@contextmanager
def copying(what: str, nbytes: int | None) -> Iterator[Copying]:
    """Show a bar on stderr while the body runs, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield Copying(lambda count: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=nbytes)
        yield Copying(lambda count: bar.advance(task, count))
