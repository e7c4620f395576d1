from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from xectool.detector.dead_channel_database import STATUS_QUERY, open_database
from xectool.errors import DataFileError, UsageError, WorldError

TABLES = """
CREATE TABLE RunCatalog (id INTEGER PRIMARY KEY, XECConf_id INTEGER);
CREATE TABLE XECConf (id INTEGER PRIMARY KEY, XECPMStatusDB_id INTEGER);
CREATE TABLE XECPMStatusDB (id INTEGER PRIMARY KEY, XECPMStatus_id INTEGER);
CREATE TABLE XECPMStatus (id INTEGER, idx INTEGER, IsBad INTEGER);
INSERT INTO RunCatalog VALUES (430000, 7), (430001, 8), (430002, 9);
INSERT INTO XECConf VALUES (7, 70), (8, 80), (9, 90);
INSERT INTO XECPMStatusDB VALUES (70, 700), (80, 800), (90, 900);
INSERT INTO XECPMStatus VALUES (700, 12, 1), (700, 3, 1), (700, 5, 0), (800, 3, 0), (900, 4760, 1);
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "conditions.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(TABLES)
    return path


def test_dead_sensors_of_a_run_are_found_through_the_four_tables(database: Path) -> None:
    assert open_database(f"sqlite://{database}").dead_channels(430000).tolist() == [3, 12]


def test_a_run_whose_sensors_are_all_fine_has_none_dead(database: Path) -> None:
    assert open_database(f"sqlite://{database}").dead_channels(430001).tolist() == []


def test_an_unknown_run_is_not_taken_for_one_without_dead_sensors(database: Path) -> None:
    with pytest.raises(DataFileError, match="check the run number"):
        open_database(f"sqlite://{database}").dead_channels(1)


def test_a_sensor_that_does_not_exist_is_refused(database: Path) -> None:
    with pytest.raises(DataFileError, match="sensor 4760 dead, which does not exist"):
        open_database(f"sqlite://{database}").dead_channels(430002)


def test_the_database_is_opened_for_reading_only(database: Path) -> None:
    with (
        closing(open_database(f"sqlite://{database}").connect()) as connection,
        closing(connection.cursor()) as cursor,
        pytest.raises(sqlite3.OperationalError, match="readonly"),
    ):
        cursor.execute("DELETE FROM XECPMStatus", ())


def test_missing_tables_are_named(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    sqlite3.connect(path).close()
    with pytest.raises(WorldError, match=r"not the experiment's database(.|\n)*--dead dead_channels\.txt"):
        open_database(f"sqlite://{path}").dead_channels(430000)


def test_a_database_out_of_reach_is_not_called_another_one(database: Path) -> None:
    found = open_database(f"sqlite://{database}")
    database.unlink()
    with pytest.raises(WorldError, match="can be reached from this machine"):
        found.dead_channels(430000)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match="ls -l"):
        open_database(f"sqlite://{tmp_path}/nowhere.db")


@pytest.mark.parametrize("change", ["IsBad = NULL", "IsBad = 'yes'", "idx = NULL, IsBad = 1"])
def test_a_status_that_is_no_number_is_named(database: Path, change: str) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(f"UPDATE XECPMStatus SET {change} WHERE id = 700 AND idx = 5")
        connection.commit()
    with pytest.raises(DataFileError, match="run 430000 holds what is no number") as raised:
        open_database(f"sqlite://{database}").dead_channels(430000)
    assert raised.value.code == "XT-DEAD-RUN"


def test_a_run_number_beyond_any_database_is_an_unknown_run(database: Path) -> None:
    with pytest.raises(DataFileError, match="check the run number"):
        open_database(f"sqlite://{database}").dead_channels(10**30)


@pytest.mark.parametrize(
    "url", ["postgres://host/db", "conditions.db", "mysql://host", "mysql://h:x/d", "mysql://[h/d"]
)
def test_other_urls_are_refused_with_the_forms_that_work(url: str) -> None:
    with pytest.raises(UsageError, match=r"use sqlite:///path/to/file\.db or mysql://host/database"):
        open_database(url)


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match=r"~/.my.cnf") as raised:
        open_database("mysql://meg:secret@host/db")
    assert "secret" not in str(raised.value)


def test_mysql_without_its_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(UsageError, match="pip install pymysql"):
        open_database("mysql://host/db")


def test_mysql_gets_its_own_placeholder_and_an_option_file(monkeypatch: pytest.MonkeyPatch, database: Path) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setitem(sys.modules, "pymysql", _driver(database, asked))
    found = open_database("mysql://host:3307/meg?option_file=/etc/meg.cnf").dead_channels(430000)
    assert np.array_equal(found, [3, 12])
    assert asked["connect"] == {"host": "host", "port": 3307, "database": "meg", "read_default_file": "/etc/meg.cnf"}
    assert asked["query"] == STATUS_QUERY.format(run="%s")


def _driver(database: Path, asked: dict[str, Any]) -> SimpleNamespace:
    """Return what pymysql offers, on top of the sqlite file."""

    class Cursor:
        def __init__(self, connection: sqlite3.Connection) -> None:
            self.cursor = connection.cursor()

        def execute(self, query: str, parameters: tuple[int, ...]) -> None:
            asked["query"] = query
            self.cursor.execute(query.replace("%s", "?"), parameters)

        def __getattr__(self, name: str) -> Callable[..., Any]:
            return getattr(self.cursor, name)  # type: ignore[no-any-return]

    def connect(**options: Any) -> SimpleNamespace:
        asked["connect"] = options
        connection = sqlite3.connect(database)
        return SimpleNamespace(cursor=lambda: Cursor(connection), close=connection.close)

    return SimpleNamespace(connect=connect, Error=sqlite3.Error, paramstyle="pyformat")
