"""Dead sensors of a run from the experiment's database.

Every run points to a detector configuration, that to an entry of the sensor-status list, and that to one row for each
sensor::

    RunCatalog.id (run number)  RunCatalog.XECConf_id
      -> XECConf.id             XECConf.XECPMStatusDB_id
      -> XECPMStatusDB.id       XECPMStatusDB.XECPMStatus_id
      -> XECPMStatus.id         XECPMStatus.idx (sensor), XECPMStatus.IsBad (1: dead)

Any driver that follows PEP 249 will do. Host, user and password never pass through here: give them to the driver, best
in its own option file.
"""

from __future__ import annotations

import importlib
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

import numpy as np
import numpy.typing as npt

from xectool.detector import constants as c
from xectool.errors import DataFileError, UsageError, WorldError, in_shell

STATUS_QUERY = """\
SELECT status.idx, status.IsBad
FROM RunCatalog AS run
JOIN XECConf AS conf ON conf.id = run.XECConf_id
JOIN XECPMStatusDB AS list ON list.id = conf.XECPMStatusDB_id
JOIN XECPMStatus AS status ON status.id = list.XECPMStatus_id
WHERE run.id = {run}
ORDER BY status.idx"""
"""One row a sensor; ``{run}`` becomes the driver's placeholder, never the number itself."""

_PLACEHOLDERS = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric": ":1"}


class Connection(Protocol):
    """What is used of a PEP 249 connection."""

    def cursor(self) -> Any:
        """Return a cursor."""

    def close(self) -> None:
        """Close the connection."""


class DeadChannelDatabase(Protocol):
    """Where the dead sensors of a run are known."""

    def dead_channels(self, run_number: int) -> npt.NDArray[np.int64]:
        """Return the ascending ids of the sensors that are dead in a run."""


@dataclass(frozen=True)
class SqlDeadChannels:
    """The experiment's tables behind any PEP 249 driver.

    Attributes:
        connect: Opens a connection.
        errors: What the driver raises.
        placeholder: How the driver marks a parameter.
        name: Shown in messages; without a password.
    """

    connect: Callable[[], Connection]
    errors: type[Exception] | tuple[type[Exception], ...]
    placeholder: str
    name: str

    def dead_channels(self, run_number: int) -> npt.NDArray[np.int64]:
        """Return the ascending ids of the sensors whose status is bad.

        Raises:
            DataFileError: The run has no sensor status, or the status names a sensor that does not exist.
            WorldError: The database does not answer, or lacks the tables.
        """
        query = STATUS_QUERY.format(run=self.placeholder)
        try:
            with closing(self.connect()) as connection, closing(connection.cursor()) as cursor:
                cursor.execute(query, (run_number,))
                rows = cursor.fetchall()
        except OverflowError:  # sqlite cannot hold the number, so it has no such run
            rows = []
        except self.errors as error:
            raise WorldError(
                f"the sensor status of run {run_number} cannot be read: {error}",
                where=f"{self.name}, tables RunCatalog, XECConf, XECPMStatusDB, XECPMStatus",
                fix=f"{_cause(str(error))}, or name a text file: --dead dead_channels.txt",
                code="XT-DEAD-DATABASE",
            ) from error
        return self._checked(rows, run_number)

    def _checked(self, rows: Sequence[Sequence[Any]], run_number: int) -> npt.NDArray[np.int64]:
        if not rows:
            # An empty answer must not pass as "no sensor is dead".
            raise DataFileError(
                f"the database has no sensor status for run {run_number}",
                where=f"{self.name}, RunCatalog.id = {run_number}",
                fix="check the run number, or take a neighbouring run",
                code="XT-DEAD-RUN",
            )
        try:
            dead = np.array(sorted({int(sensor) for sensor, is_bad in rows if int(is_bad) == 1}), dtype=np.int64)
        except (TypeError, ValueError, OverflowError) as error:
            raise DataFileError(
                f"the sensor status of run {run_number} holds what is no number: {error}",
                where=f"{self.name}, XECPMStatus.idx and IsBad, run {run_number}",
                fix="ask whoever maintains the table, or name a text file: --dead dead_channels.txt",
                code="XT-DEAD-RUN",
            ) from error
        if len(dead) and not 0 <= dead[0] <= dead[-1] < c.NUM_SENSORS:
            wrong = dead[0] if dead[0] < 0 else dead[-1]
            raise DataFileError(
                f"the database calls sensor {wrong} dead, which does not exist",
                where=f"{self.name}, XECPMStatus.idx, run {run_number}",
                fix=f"sensors are 0 to {c.NUM_SENSORS - 1}; ask whoever maintains the table",
                code="XT-DEAD-RUN",
            )
        return dead


def _cause(said: str) -> str:
    """Return what to look at: a database that answers is another one than the experiment's, not out of reach."""
    if re.search(r"no such (table|column)|doesn't exist|unknown (table|column)|not a database", said, re.IGNORECASE):
        return "this is not the experiment's database: name the one that has these tables"
    return "check that the database can be reached from this machine"


def open_database(url: str) -> SqlDeadChannels:
    """Return the database behind an url.

    Args:
        url: ``sqlite:///path/to/file.db``, or ``mysql://host[:port]/name?option_file=~/.my.cnf``; user and password are
            read by the driver from the option file (default ``~/.my.cnf``, group ``client``).

    Raises:
        UsageError: The url is not understood, holds a password, or its driver is not installed.
        DataFileError: The sqlite file does not exist.
    """
    parts = _split(url)
    if parts.password or parts.username:
        raise UsageError(
            "the database url holds a user name or password",
            where=f"{parts.scheme}://…@{parts.hostname or ''}{parts.path}",
            fix="put user and password into ~/.my.cnf and leave them out of the url",
        )
    if parts.scheme == "sqlite" and parts.path:
        return sqlite_dead_channels(Path(unquote(parts.path)))
    if parts.scheme == "mysql" and parts.hostname and parts.path.strip("/"):
        return _mysql_dead_channels(url)
    raise _no_url(url)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # looked at only when it is asked for
    except ValueError as error:
        raise _no_url(url) from error
    return parts


def _no_url(url: str) -> UsageError:
    return UsageError(f"'{url}' is not a database url", fix="use sqlite:///path/to/file.db or mysql://host/database")


def sqlite_dead_channels(path: Path) -> SqlDeadChannels:
    """Return the tables in a sqlite file, opened for reading only.

    Raises:
        DataFileError: The file does not exist.
    """
    if not path.is_file():
        raise DataFileError("the database file does not exist", where=str(path), fix=f"ls -l {in_shell(path.parent)}")
    return SqlDeadChannels(
        connect=lambda: sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True),
        errors=(sqlite3.Error, UnicodeDecodeError),  # a message may quote a damaged schema
        placeholder=_PLACEHOLDERS[sqlite3.paramstyle],
        name=str(path),
    )


def _mysql_dead_channels(url: str) -> SqlDeadChannels:
    parts = urlsplit(url)
    options = dict(item.partition("=")[::2] for item in parts.query.split("&") if item)
    option_file = unquote(options.get("option_file", "~/.my.cnf"))
    try:
        driver = importlib.import_module("pymysql")
    except ImportError as error:
        raise UsageError(
            "reading a MySQL database needs the driver PyMySQL", where=url, fix="pip install pymysql"
        ) from error
    return SqlDeadChannels(
        connect=lambda: driver.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            database=parts.path.strip("/"),
            read_default_file=str(Path(option_file).expanduser()),
        ),
        errors=driver.Error,
        placeholder=_PLACEHOLDERS[driver.paramstyle],
        name=f"mysql://{parts.hostname}{parts.path}",
    )
