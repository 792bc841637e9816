"""Texts in one column of a table: a CSV file (.csv, .tsv) with a header, or JSON lines, an object each; .gz too."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flockstep.lda.data.text import beginning

_CSV = {".csv": ",", ".tsv": "\t"}
_LONGEST = 2**31 - 1
"""Of a field: Python's own limit would be 131,072 characters, less than some texts have."""


def is_table(path: Path, begin: bytes) -> bool:
    """Whether a file is one, by its name or by how it begins."""
    return _ending(path) in (*_CSV, ".jsonl", ".ndjson") or _is_object(begin.partition(b"\n")[0])


def _ending(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


class Table:
    """A document per row, its text in ``column``."""

    def __init__(self, path: Path, *, column: str | None, encoding: str = "utf-8") -> None:
        # A table saved by a spreadsheet begins with a mark that is no part of the first column's name.
        self._path, self._encoding = path, "utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding
        self._delimiter = _CSV.get(_ending(path))
        columns = self._names = self._columns()
        if column is None:
            raise ValueError(
                f"{path} is a table with the columns {', '.join(columns)}: name the one that has the texts (--column)"
            )
        if column not in columns:
            raise ValueError(f"{path} has no column {column!r}; it has {', '.join(columns)}")
        self._column = column

    def __iter__(self) -> Iterator[str]:
        return (text for _, text in self._rows(self._column))

    def labels(self, column: str) -> list[str]:
        """What another column says of each document."""
        if column not in self._names:
            raise ValueError(f"{self._path} has no column {column!r}; it has {', '.join(self._names)}")
        return [text.strip() for _, text in self._rows(column, plain=True)]

    def __len__(self) -> int:
        return sum(1 for _ in self._rows(self._column))

    def title(self, number: int) -> str:
        """The number of the row, from 1."""
        return f"row {number + 1}"

    def snippets(self, numbers: Iterable[int]) -> dict[int, str]:
        """How these documents begin."""
        wanted = set(numbers)
        return {number: beginning(text) for number, text in self._rows(self._column) if number in wanted}

    def _columns(self) -> list[str]:
        with self._opened() as file:
            if self._delimiter is not None:
                return next(csv.reader(file, delimiter=self._delimiter), [])
            return list(next((row for _, row in self._objects(file)), {}))

    def _rows(self, column: str, *, plain: bool = False) -> Iterator[tuple[int, str]]:
        with self._opened() as file:
            if self._delimiter is None:
                for number, (line, row) in enumerate(self._objects(file)):
                    yield number, self._plain(row.get(column)) if plain else self._text(row, line)
                return
            csv.field_size_limit(_LONGEST)
            lines = csv.reader(file, delimiter=self._delimiter)
            place = next(lines).index(column)
            for number, fields in enumerate(fields for fields in lines if fields):
                # A short row has no text, as an empty field has none.
                yield number, fields[place] if place < len(fields) else ""

    def _objects(self, file: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                fine = isinstance(row, dict)
            except ValueError as error:
                raise ValueError(f"line {number} of {self._path} is not JSON: {error}") from None
            if not fine:
                raise ValueError(f"line {number} of {self._path} is not a JSON object")
            yield number, row

    @staticmethod
    def _plain(value: Any) -> str:
        return "" if value is None else str(value)

    def _text(self, row: dict[str, Any], line: int) -> str:
        text = row.get(self._column)
        if text is not None and not isinstance(text, str):
            raise ValueError(f"line {line} of {self._path}: {self._column!r} must be a text, got {text!r:.60}")
        return text or ""

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        opened: Any = gzip.open if self._path.suffix == ".gz" else open
        try:
            # Line breaks inside of fields are the reader's business.
            with opened(self._path, "rt", encoding=self._encoding, newline="") as file:
                yield file
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self._path} is not {error.encoding} text: {error.reason}\n  name its encoding, such as latin-1"
            ) from None
        except LookupError:
            raise ValueError(f"there is no encoding {self._encoding!r}") from None
        except csv.Error as error:
            raise ValueError(f"{self._path} is not a table: {error}") from None
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{self._path} is damaged: {error}") from None
