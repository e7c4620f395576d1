"""SQL over the record of a run, live or long over."""

from __future__ import annotations

import datetime
import decimal
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb

from xectool.errors import UsageError, duration, in_shell, nearest
from xectool.runlog.reader import RunReader
from xectool.runlog.tables import TABLES, load_table

_MEMORY: Final = "4GB"
_LONGEST_S: Final = 60.0
_ROWS_AT_ONCE: Final = 10_000
_LOCKED: Final = ("SET enable_external_access = false", "SET lock_configuration = true")
_WRITING: Final = ("ALTER", "CREATE", "DELETE", "DROP", "INSERT", "UPDATE")
_EXAMPLE: Final = "SELECT step, loss FROM steps ORDER BY step DESC LIMIT 10"
_NAMED: Final = (
    re.compile(r"Table with name (?P<name>\S+) does not exist"),
    re.compile(r"[Cc]olumn \"(?P<name>[^\"]+)\""),
    re.compile(r"Function with name (?P<name>\S+) does not exist"),
)


@dataclass(frozen=True)
class QueryRows:
    """What a query gave.

    Attributes:
        columns: Names of the columns.
        rows: The rows, as plain values.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def query(reader: RunReader, text: str) -> QueryRows:
    """Run a query over the tables of a run.

    The database is in memory, sees no file and no network, and cannot be told otherwise from inside the query. Only
    tables whose names occur in the text are read, or all where none does.

    Args:
        reader: The run.
        text: One SQL statement.

    Raises:
        UsageError: The statement is empty or wrong, which names the nearest table or column, or takes over a minute.
    """
    named = [name for name in TABLES if re.search(rf"\b{name}\b", text, re.IGNORECASE)]
    tables = {name: load_table(reader, name) for name in named or TABLES}
    with duckdb.connect(":memory:", config={"memory_limit": _MEMORY, "threads": 2}) as connection:
        for name, table in tables.items():
            connection.register(name, table)
        for setting in _LOCKED:
            connection.execute(setting)
        try:
            if problem := _refused(connection.extract_statements(text)):
                fix = f'xectool diagnose query {in_shell(reader.run_dir)} "{_EXAMPLE}"'
                raise UsageError(problem, where=f"'{text}'", fix=fix, code="XT-QUERY")
            return _answer(connection, text)
        except duckdb.InterruptException:
            raise _too_long(text, reader) from None
        except duckdb.Error as error:
            known = [name for table in tables.values() for name in table.column_names]
            raise _explained(str(error), text, known) from None


def _answer(connection: duckdb.DuckDBPyConnection, text: str) -> QueryRows:
    """Return what a statement gives; raises DuckDB's InterruptException once it has taken too long."""
    until = time.monotonic() + _LONGEST_S
    alarm = threading.Timer(_LONGEST_S, connection.interrupt)
    alarm.start()
    try:
        found = connection.execute(text)
        rows: list[tuple[Any, ...]] = []
        while some := found.fetchmany(_ROWS_AT_ONCE):  # the alarm does not reach what is already being fetched
            rows += (tuple(map(_plain, row)) for row in some)
            if time.monotonic() > until:
                raise duckdb.InterruptException
        return QueryRows(tuple(item[0] for item in found.description or ()), tuple(rows))
    finally:
        alarm.cancel()


def _too_long(text: str, reader: RunReader) -> UsageError:
    return UsageError(
        f"the query was stopped: it took more than {duration(_LONGEST_S)}",
        where=text,
        fix=f'ask for less, with LIMIT or GROUP BY: xectool diagnose query {in_shell(reader.run_dir)} "{_EXAMPLE}"',
        code="XT-QUERY",
    )


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)


def _refused(statements: Sequence[duckdb.Statement]) -> str:
    """Return what is wrong with a query as a whole; empty where it is one that reads."""
    if len(statements) != 1:
        return f"the query holds {len(statements)} statements, not one" if statements else "the query is empty"
    word = statements[0].type.name
    return f"the record is read only: it takes no {word}" if word in _WRITING else ""


def _explained(message: str, text: str, columns: list[str]) -> UsageError:
    problem = message.partition("\n")[0]
    found = next((match for pattern in _NAMED if (match := pattern.search(message))), None)
    name = found["name"] if found else ""
    known = list(TABLES) if found and found.re is _NAMED[0] else list(dict.fromkeys(columns))
    near = nearest(name, known, 1) if name else []
    if near:
        fix = f"did you mean {_quoted(near[0])}?"
    elif name and known != list(TABLES):
        fix = f"columns here: {', '.join(map(_quoted, known))}"
    else:
        fix = f"the tables are {', '.join(TABLES)}; columns of one: DESCRIBE steps"
    return UsageError(f"the query cannot be run: {problem}", where=text, fix=fix, code="XT-QUERY")


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else f'"{name}"'
