"""One set of rows from every kind of source: the same table, and faults named alike."""

import contextlib
import dataclasses
import datetime
import decimal
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pytest
import sqlalchemy

from data.stored_rows import KINDS, database, stored_as
from fedclust.data import Dataset, DataWarning, SqlQuery, Table, load
from fedclust.data.persons import read_persons
from fedclust.data.row_source import RowSource
from fedclust.data.site_data import session_rows, site_data
from fedclust.data.sql import SqlReader
from fedclust.schema.feature import Feature
from fedclust.wire.errors import DataError, UsageError
from support.driven import plan_for
from support.processes import run

AGE = Feature(name="age", unit="years", lower=0.0, upper=120.0)
SEX = Feature(name="sex", kind="binary")
CHOL = Feature(name="chol", unit="mg/dl")
FEATURES = (AGE, SEX, CHOL)
N = 23
RNG = np.random.default_rng(5)
ROWS = pd.DataFrame(
    {
        "who": [f"p{i // 2}" for i in range(N)],
        "note": [f"x, {i}" for i in range(N)],
        "age": RNG.integers(20, 60, N).astype(float),
        "sex": RNG.integers(0, 2, N).astype(float),
        "chol": np.where(RNG.random(N) < 0.2, np.nan, RNG.normal(200, 40, N).round(3)),
    }
)
X = ROWS[["age", "sex", "chol"]].to_numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_every_source_gives_the_same_table_in_blocks_as_long_as_asked_for(
    kind: str, tmp_path: Path
) -> None:
    source = stored_as(kind, ROWS, tmp_path)
    table = load(source, FEATURES, person="who", id_column="note")
    assert table.ids == tuple(ROWS["note"])
    assert table.columns == table.features == ("age", "sex", "chol")
    np.testing.assert_array_equal(table.X, X)
    assert table.digest() == Table(X, table.features).digest()
    assert load(source, (CHOL,), lacking=True).columns == ("chol",)
    with pytest.raises(DataError, match="weight"):
        load(source, (AGE, Feature(name="weight")))
    opened = RowSource(source, FEATURES, text=("who",))
    for rows in (5, 23, 5):
        blocks = list(opened.scan(rows))
        sizes = [len(block) for block in blocks]
        assert all(rows <= size < 2 * rows for size in sizes[:-1])
        assert 0 < sizes[-1] < 2 * rows
        assert [block.start for block in blocks] == [sum(sizes[:n]) for n in range(len(sizes))]
        np.testing.assert_array_equal(np.concatenate([opened.matrix(b) for b in blocks]), X)
        assert [who for b in blocks for who in b.text["who"]] == list(ROWS["who"])


@pytest.mark.parametrize("chunks", [(5, 3), (5, 1), ((0, 4, 0, 19), 3)])
def test_dask_arrays_by_their_order(chunks: Any) -> None:
    import dask.array

    lazy = dask.array.from_array(X, chunks=chunks)
    np.testing.assert_array_equal(load(lazy, FEATURES).X, X)
    unknown = lazy[lazy[:, 0] > 30]
    np.testing.assert_array_equal(load(unknown, FEATURES).X, X[X[:, 0] > 30])
    assert fault(lazy[:, :2]).rule == "shape"
    assert fault(lazy[:0]).rule == "no-rows"
    assert fault(lazy, id_column="who").rule == "missing-column"


def fault(source: Any, features: Any = FEATURES, **options: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        load(source, features, **options)
    error = caught.value
    assert "SECRET" not in str(error)
    while error.__cause__ is not None or (error.__context__ and not error.__suppress_context__):
        pytest.fail("a traceback would show what the library said")
    return error


def test_what_a_dask_array_masks_is_missing() -> None:
    """As of a masked array: the numbers under a mask are none."""
    import dask.array as da

    X = np.ma.MaskedArray(np.arange(8.0).reshape(4, 2) + 0.5, mask=np.eye(4, 2, dtype=bool))
    features = (AGE, CHOL)
    expected = load(X, features).X
    assert np.isnan(expected).sum() == 2
    lazy = da.from_array(X, chunks=(3, 1))
    assert np.array_equal(load(lazy, features).X, expected, equal_nan=True)


@pytest.mark.parametrize("kind", ["M8[ns]", "m8[ns]", "Int64", "float", "object"])
@pytest.mark.parametrize("how", ["column", "series", "list", "dask"])
def test_a_row_without_a_person_is_refused(kind: str, how: str) -> None:
    """Whatever pandas calls it: NaT, NaN, NA or None."""
    rows = ROWS.assign(who=pd.Series([*range(7), None, *range(7, N - 1)]).astype(kind))
    source: Any = rows
    if how == "dask":
        import dask.dataframe

        source = dask.dataframe.from_pandas(rows, npartitions=2)
    person = {"series": rows.who, "list": rows.who.tolist()}.get(how, "who")
    with pytest.raises(DataError, match="row 7: no person is given") as fault:
        load(source, FEATURES, person=person)
    assert fault.value.rule == "persons"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_may_end_in_any_way(end: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    lines = ["age,sex,chol", *(f"{20 + i % 90}.5,1,2" for i in range(4_000))]
    path.write_bytes(end.join(lines).encode())
    assert load(path, FEATURES).X.shape == (4_000, 3)
    lines[3_000] = "20.5,x,2"
    path.write_bytes(end.join(lines).encode())
    with pytest.raises(DataError, match="line 3001, column 'sex'"):
        load(path, FEATURES)
    for encoding in ("utf-8", "utf-16"):
        text = end.join(lines).encode(encoding)
        place = len(end.join(lines[:3_001]).encode(encoding))
        path.write_bytes(text[:place] + b"\xff\xdf" + text[place:])
        with pytest.raises(DataError, match=r"rows\.csv, line 3001: this is not UTF"):
            load(path, FEATURES)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_what_another_program_could_not_read_is_no_fault(encoding: str, tmp_path: Path) -> None:
    """It left U+FFFD in line 2, which can be decoded."""
    path = tmp_path / "rows.csv"
    path.write_bytes("age,note\n40,\ufffd\n50,".encode(encoding) + b"\x00\xdc\n")
    with pytest.raises(DataError, match=r"rows\.csv, line 3: this is not UTF"):
        load(path, (AGE,))


# --- CSV ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_the_delimiter_is_the_headers(mark: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f'note{mark}age{mark}chol\n"a,b;c"{mark}40{mark}200.5\n', "utf-8")
    np.testing.assert_array_equal(load(path, (AGE, CHOL)).X, [[40, 200.5]])
    given = Dataset(path, delimiter="," if mark == ";" else ";")
    assert fault(given, (AGE, CHOL)).rule == "missing-column"


def test_a_delimiter_that_might_be_another_is_told_by_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("age,x;chol\n1,2;3\n4;5\n", "utf-8")
    assert load(path, (CHOL,)).X.tolist() == [[3.0], [5.0]]
    # In a file with one column, decimal commas are no delimiters.
    path.write_text("chol\n3,5\n4,5\n", "utf-8")
    assert load(Dataset(path, decimal=","), (CHOL,)).X.tolist() == [[3.5], [4.5]]


@pytest.mark.parametrize(
    ("encoding", "given"),
    [
        ("utf-8", None),
        ("utf-8-sig", None),
        ("utf-8-sig", "utf-8"),
        ("utf-16", None),
        ("utf-16", "utf-16"),
        ("utf-32", None),
        ("cp1252", "cp1252"),
        ("latin-1", "latin-1"),
        ("utf-16-le", "utf-16-le"),
        ("utf-16", "utf-16-le"),
    ],
)
def test_encodings(encoding: str, given: str | None, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("größe,name\n1.5,Müller\n2.5,Å\n".encode(encoding))
    table = load(Dataset(path, encoding=given), (Feature(name="größe"),), id_column="name")
    assert table.X[:, 0].tolist() == [1.5, 2.5]
    assert table.ids == ("Müller", "Å")


@pytest.mark.parametrize(
    ("data", "given", "line"),
    [
        ("age\n1\nMüller\n".encode("cp1252"), None, 3),
        (b"age\n1\n\x81\n", "cp1252", 3),
        ("age\n1\n2\n".encode("utf-16") + b"\x00\xd8\n\x00", None, 4),
        ("age\n1\n2\n".encode("utf-16-be"), "ascii", None),
        (b"\xff\xfeage", "utf-8", 1),
    ],
)
def test_what_is_no_text_is_named_by_its_line(
    data: bytes, given: str | None, line: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(data)
    error = fault(Dataset(path, encoding=given), (AGE,))
    if line is None:  # ASCII with zero bytes: a header of another name
        assert error.rule in ("missing-column", "encoding")
        return
    assert (error.rule, error.row) == ("encoding", line)
    assert "--encoding" in str(error)


def test_decimal_commas(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("age;chol\n40;200,5\n41;-1,5e1\n42;\n43;7\n", "utf-8")
    assert "--decimal ," in str(fault(path, (AGE, CHOL)))
    table = load(Dataset(path, decimal=","), (AGE, CHOL))
    np.testing.assert_array_equal(table.X[:, 1], [200.5, -15, np.nan, 7])
    # A point among decimal commas would separate thousands, or be somebody else's decimals.
    path.write_text("age;chol\n40;1.234\n", "utf-8")
    assert fault(Dataset(path, decimal=","), (AGE, CHOL)).row == 2


def test_a_file_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "rows.data"
    path.write_text("40;1;200\n41;0;?\n", "utf-8")
    named = Dataset(path, columns=["age", "sex", "chol"], missing="?")
    np.testing.assert_array_equal(load(named, FEATURES).X, [[40, 1, 200], [41, 0, np.nan]])
    assert fault(Dataset(path, columns=["age", "sex"]), (AGE,)).rule == "field-count"
    path.write_text("age,sex,chol\n40,1,200\n", "utf-8")
    assert fault(named).rule == "header-twice"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_no_file_is_read_into_memory_at_once(kind: str, tmp_path: Path) -> None:
    peaks = []
    for n in (4_000, 32_000):
        rows = pd.DataFrame({"age": np.arange(n) % 90 + 0.25, "note": ["y" * 50] * n})
        path = tmp_path / f"{n}.{kind}"
        if kind == "csv":
            rows.to_csv(path, index=False)
        else:
            rows.to_parquet(path, row_group_size=1_000)
        opened = RowSource(path, (AGE,), text=("note",))
        tracemalloc.start()
        assert sum(len(block) for block in opened.scan(1_000)) == n
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0], peaks


# --- what other sources hold ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "rule", "row", "says"),
    [
        ([1.0, "SECRET"], "not-a-number", 1, "(str)"),
        ([1.0, "2"], "not-a-number", 1, "convert"),
        ([1.0, datetime.date(2026, 1, 1)], "not-a-number", 1, "date"),
        ([None, pd.Timestamp("2026-01-01", tz="UTC")], "not-a-number", 1, "date"),
        (pd.to_datetime([None, "2026-01-01"]), "not-a-number", 1, "date"),
        (np.array([1.0, np.inf]), "too-large", 1, "infinite"),
        ([], "no-rows", None, "no rows"),
        ([1.0, 10**400], "too-large", 1, "infinite"),
        ([1.0, 1e155], "too-large", 1, "--sentinel"),
        ([1.0, 1j], "not-a-number", 1, "complex"),
        ([1.0, np.timedelta64(1, "D")], "not-a-number", 1, "date"),
        ([1.0, b"1"], "not-a-number", 1, "bytes"),
    ],
)
def test_cells_that_are_no_numbers(values: Any, rule: str, row: int | None, says: str) -> None:
    kind = object if isinstance(values, list) else values.dtype
    error = fault(pd.DataFrame({"chol": pd.Series(values, dtype=kind)}), (CHOL,))
    assert (error.rule, error.row) == (rule, row)
    assert error.column == (None if row is None else "chol")
    assert says in str(error)


def test_numbers_of_every_make() -> None:
    values = [decimal.Decimal("1.5"), np.float32(2), 3, None, pd.NA, float("nan"), np.int8(4)]
    column = pd.DataFrame({"chol": pd.Series(values, dtype=object)})
    found = load(column, (CHOL,)).X[:, 0]
    np.testing.assert_array_equal(found, [1.5, 2, 3, np.nan, np.nan, np.nan, 4])


def test_parquet_of_every_type(tmp_path: Path) -> None:
    rows = pd.DataFrame(
        {
            "age": pd.array([40, None], dtype="Int64"),
            "sex": pd.array([True, None], dtype="boolean"),
            "chol": [decimal.Decimal("1.5"), None],
            "when": pd.to_datetime(["2026-01-01", None]),
            "text": ["SECRET", None],
        }
    )
    rows.to_parquet(tmp_path / "rows.parquet")
    table = load(tmp_path / "rows.parquet", FEATURES)
    np.testing.assert_array_equal(table.X, [[40, 1, 1.5], [np.nan, np.nan, np.nan]])
    for name in ("when", "text"):
        error = fault(tmp_path / "rows.parquet", (Feature(name=name),))
        assert (error.rule, error.row) == ("not-a-number", 0)


def test_damaged_parquet(tmp_path: Path) -> None:
    whole = stored_as("parquet", ROWS, tmp_path).read_bytes()
    for cut in (0, 3, len(whole) // 2):
        (tmp_path / "cut.parquet").write_bytes(whole[:cut])
        assert fault(tmp_path / "cut.parquet").rule == "parquet"
    (tmp_path / "cut.parquet").write_bytes(b"PAR1" + b"\x00" * (len(whole) - 12) + whole[-8:])
    assert fault(tmp_path / "cut.parquet").source == "cut.parquet"
    assert fault(tmp_path / "absent.parquet").rule == "unreadable"


def test_tables_of_other_libraries_are_not_read_by_their_order() -> None:
    swapped = pyarrow.Table.from_pandas(ROWS[["sex", "age", "chol"]])
    assert fault(swapped).rule == "unknown-table"
    np.testing.assert_array_equal(load(swapped.to_pandas(), FEATURES).X, X)


def test_a_dask_graph_that_fails() -> None:
    import dask.dataframe

    def broken(part: pd.DataFrame) -> pd.DataFrame:
        raise ValueError("SECRET")

    lazy = dask.dataframe.from_pandas(ROWS, npartitions=2)
    error = fault(lazy.map_partitions(broken, meta=ROWS.iloc[:0]))
    assert error.rule == "dask"
    assert "partition 0" in str(error)


# --- queries --------------------------------------------------------------------------------------


def test_a_query_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database(ROWS, tmp_path)
    query, address = tmp_path / "cohort.sql", tmp_path / "address"
    query.write_text("SELECT who, age, sex, chol FROM cohort -- 100% ':x'\nORDER BY rowid\n;\n")
    address.write_text(f"sqlite:///{tmp_path}/rows.db\n")
    address.chmod(0o600)
    given = Dataset(query, sql_url_file=address)
    np.testing.assert_array_equal(load(given, FEATURES, id_column="who").X, X)
    monkeypatch.delenv("FEDCLUST_SQL_URL", raising=False)
    error = fault(query)
    assert "FEDCLUST_SQL_URL" in str(error)
    monkeypatch.setenv("FEDCLUST_SQL_URL", f"sqlite:///{tmp_path}/rows.db")
    np.testing.assert_array_equal(load(query, FEATURES).X, X)
    with pytest.raises(UsageError, match="cannot be read"):
        load(Dataset(query, sql_url_file=tmp_path / "absent"), FEATURES)


def test_a_query_runs_once_for_a_table(tmp_path: Path) -> None:
    engine, asked = database(ROWS, tmp_path), []
    sqlalchemy.event.listen(engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    query = SqlQuery("SELECT * FROM cohort ORDER BY rowid", engine=engine)
    load(query, FEATURES)
    assert len(asked) == 1
    plan = plan_for(1, {"n_clusters": 2}, {"protection": "none"})
    plan = dataclasses.replace(plan, features=tuple(FEATURES))
    site_data(plan, query, session_rows(plan, query), 1)
    assert len(asked) == 2
    with contextlib.suppress(DataError):
        load(SqlQuery("SELECT age FROM cohort", engine=engine), FEATURES)
    assert engine.pool.checkedout() == 0


def test_a_query_that_is_not_read_gives_its_connection_back(tmp_path: Path) -> None:
    engine = database(ROWS, tmp_path)
    reader = SqlReader(SqlQuery("SELECT * FROM cohort", engine=engine))
    assert engine.pool.checkedout() == 1
    for _ in range(2):
        reader.close()
        assert engine.pool.checkedout() == 0


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT age FROM wards ORDER BY 1", "no table or column 'wards'"),
        ("SELECT height FROM cohort ORDER BY 1", "no table or column 'height'"),
        ("SELECT age FROM cohort; SELECT 1", "one statement"),
        ("SET search_path TO cdm; SELECT 1", "write schema.table"),
        ("SELECT 'SECRET' FROM cohort WHERE", "could not run the query"),
        (";", "no query"),
        ("DELETE FROM cohort", "not run"),
        ("/* SELECT */ -- SELECT\nDROP TABLE cohort", "not run"),
        ("WITH x AS (SELECT 1) DELETE FROM cohort", "could not run the query"),
        ("SELECT age, sex, chol FROM cohort; DROP TABLE cohort", "could not run the query"),
        ("SELECT age, age, sex, chol FROM cohort", "twice"),
        ("SELECT age, sex FROM cohort", "'chol'"),
        ("SELECT age, sex, chol FROM cohort WHERE age > 1000", "no rows"),
        ("SELECT age, sex, 'SECRET' AS chol FROM cohort", "row 0, column 'chol'"),
    ],
)
def test_a_query_that_fails(query: str, says: str, tmp_path: Path) -> None:
    engine = database(ROWS, tmp_path)
    error = fault(SqlQuery(query, engine=engine))
    assert says in str(error)
    # What a statement would have changed was rolled back.
    assert len(load(SqlQuery("SELECT age FROM cohort", engine=engine), (AGE,)).X) == N


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql+nodriver://me:SECRET@host/x", ""),
        ("SECRET", ""),
        ("sqlite:////nowhere/SECRET/x.db", ""),
        ("oracle+oracledb://me:SECRET@host/x", ""),
        # Told from a wrong password.
        ("postgresql+psycopg://me:SECRET@127.0.0.1:1/x", "are host, port"),
    ],
)
def test_a_database_that_cannot_be_reached(url: str, says: str) -> None:
    error = fault(SqlQuery("SELECT 1 AS age", url=url), (AGE,))
    assert error.rule in ("sql", "extra-missing")
    assert says in str(error)
    assert "SECRET" not in repr(SqlQuery("SELECT 1", url=url))


# --- identifiers, and what is not installed -------------------------------------------------------


def test_identifiers_among_the_features_are_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    rng = np.random.default_rng(1)
    column = pd.DataFrame({"chol": rng.permutation(np.arange(10_000, 99_000, 17))[:40]})
    with pytest.warns(DataWarning, match="'chol'"):
        read_persons(column, (CHOL,))
    with pytest.warns(DataWarning):
        read_persons(pd.DataFrame({"chol": [5, 3, 4]}), (CHOL,))
    recwarn.clear()
    for rows in (column / 7, pd.concat([column, column]), column[:9], column.to_numpy()):
        read_persons(rows, (CHOL,))
    assert not recwarn.list


def test_what_a_bare_install_lacks_is_named_with_its_command(tmp_path: Path) -> None:
    files = {"rows.parquet": "data", "rows.sql": "sql", "rows.xlsx": "excel"}
    for file in files:
        (tmp_path / file).write_text("SELECT 1 AS age")
    (tmp_path / "rows.csv").write_text("age\n40\n")
    program = f"""
import sys
for name in ("pandas", "pyarrow", "sqlalchemy", "openpyxl", "dask"):
    sys.modules[name] = None
from fedclust.schema.feature import Feature
from fedclust.data import load
from fedclust.wire.errors import DataError
print(load("rows.csv", [Feature(name="age")]).X)
for file in {list(files)}:
    try:
        load(file, [Feature(name="age")])
    except DataError as error:
        print(" ".join(str(error).split()))
"""
    done = run([sys.executable, "-c", program], cwd=tmp_path)
    first, *lines = done.stdout.splitlines()
    assert first == "[[40.]]"
    for line, extra in zip(lines, files.values(), strict=True):
        assert f'pip install "fedclust[{extra}]"' in line
