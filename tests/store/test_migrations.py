"""Migrations: up and down on both databases, and exactly the tables that the program has."""

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic import op
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect, text

from fedclust_service.domain.access import Role, Token
from fedclust_service.domain.tokens import SignIn
from fedclust_service.store import Store, Tx, migrate, tables
from support.clock import ManualClock
from support.store_rows import EPOCH, at, open_round, submission


def on(url: str, use: Callable[[Engine], Any]) -> Any:
    made = migrate._engines(url)
    try:
        return use(made.write)
    finally:
        made.dispose()


def schema(engine: Engine) -> dict[str, Any]:
    """Return all that a database knows of its tables, in comparable form."""
    found: dict[str, Any] = {}
    look = inspect(engine)
    for table in sorted(set(look.get_table_names()) - {"alembic_version"}):
        found[table] = {
            "columns": [
                (c["name"], repr(c["type"]), c["nullable"], c["default"])
                for c in look.get_columns(table)
            ],
            "primary key": look.get_pk_constraint(table),
            "foreign keys": sorted(look.get_foreign_keys(table), key=str),
            "unique": sorted(look.get_unique_constraints(table), key=str),
            "checks": sorted(look.get_check_constraints(table), key=str),
            "indices": sorted(map(_comparable, look.get_indexes(table)), key=str),
        }
    return found


def _comparable(index: Any) -> dict[str, Any]:
    """Return an index with the condition of a partial one as text."""
    options = index.get("dialect_options", {})
    return {**index, "dialect_options": {name: str(value) for name, value in options.items()}}


def test_up_down_and_up_again(empty_database_url: str) -> None:
    assert migrate.current(empty_database_url) is None
    migrate.upgrade(empty_database_url)
    assert migrate.current(empty_database_url) == tables.SCHEMA_REVISION
    first = on(empty_database_url, schema)
    assert set(first) == set(tables.metadata.tables)
    migrate.upgrade(empty_database_url)

    migrate.downgrade(empty_database_url, "base")
    assert migrate.current(empty_database_url) is None
    assert on(empty_database_url, schema) == {}

    migrate.upgrade(empty_database_url)
    assert on(empty_database_url, schema) == first


def test_a_database_with_rows_goes_down_and_the_program_starts_on_it(
    store: Store, database_url: str, clock: ManualClock
) -> None:
    _, opened = open_round(store)
    store.run_tx("insert", lambda tx: tx.submissions.insert(submission(opened, "zurich")))

    def sign_in(tx: Tx) -> None:
        owner = tx.principals.add(Role.ANALYST, "ana", "")
        tx.tokens.add(Token("t1", owner.id, "a" * 64, EPOCH, at(9)))
        tx.sign_ins.add(SignIn("s1", "t1", "b" * 64, EPOCH, EPOCH, at(9)))

    store.run_tx("sign in", sign_in)
    store.close()
    migrate.downgrade(database_url, "base")
    assert on(database_url, schema) == {}
    with closing(Store.open(database_url, clock)) as store:
        open_round(store)


def test_alembic_sees_no_difference_to_the_tables(database_url: str) -> None:
    def differences(engine: Engine) -> list[Any]:
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            return compare_metadata(context, tables.metadata)

    assert on(database_url, differences) == []


def test_the_first_migration_is_written_out_before_there_is_a_second() -> None:
    # It makes the tables of today. Those that a second one adds would be made twice.
    (first,) = ScriptDirectory.from_config(migrate._alembic_config()).walk_revisions()
    assert first.revision == "0001"


def test_every_constraint_has_a_name_of_its_own() -> None:
    seen: set[str] = set()
    for table in tables.metadata.tables.values():
        for constraint in [*table.constraints, *table.indexes]:
            assert isinstance(constraint.name, str), (table, constraint)
            assert constraint.name not in seen
            assert len(constraint.name) <= 63  # PostgreSQL cuts longer names
            seen.add(constraint.name)


def test_a_migration_that_fails_leaves_nothing_behind(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(op, "bulk_insert", broken)
        with pytest.raises(ZeroDivisionError):
            migrate.upgrade(empty_database_url)
    assert on(empty_database_url, schema) == {}
    assert migrate.current(empty_database_url) is None
    migrate.upgrade(empty_database_url)


def test_asking_for_the_migration_makes_no_file(tmp_path: Path) -> None:
    assert migrate.current(f"sqlite:///{tmp_path}/none.db") is None
    assert list(tmp_path.iterdir()) == []


def test_sqlite_uses_rising_row_numbers(sqlite_url: str) -> None:
    # Only a column that is declared INTEGER PRIMARY KEY gets them.
    def declared(engine: Engine) -> str:
        with engine.connect() as connection:
            query = text("SELECT sql FROM sqlite_master WHERE name = 'submissions'")
            return str(connection.execute(query).scalar_one())

    assert "id INTEGER NOT NULL" in on(sqlite_url, declared)


def test_a_percent_sign_in_the_path_of_an_installation_is_no_interpolation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "100%" / "migrations"
    shutil.copytree(migrate.FOLDER, installed)
    monkeypatch.setattr(migrate, "FOLDER", installed)
    migrate.upgrade(f"sqlite:///{tmp_path}/x.db")
    assert migrate.current(f"sqlite:///{tmp_path}/x.db") == tables.SCHEMA_REVISION
