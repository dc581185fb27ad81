"""The rows of a DataFrame in every kind of source."""

from pathlib import Path
from typing import Any

import pandas as pd
import sqlalchemy

from fedclust.data import SqlQuery

KINDS = ("frame", "csv", "parquet", "parts", "excel", "sql", "dask")


def database(frame: pd.DataFrame, folder: Path) -> sqlalchemy.Engine:
    """Return a database with the rows in a table ``cohort``."""
    engine = sqlalchemy.create_engine(f"sqlite:///{folder}/rows.db")
    frame.to_sql("cohort", engine, index=False, if_exists="replace")
    return engine


def stored_as(kind: str, frame: pd.DataFrame, folder: Path, rows: int = 7) -> Any:
    """Return a source; row groups and the files of a directory have so many rows."""
    path = folder / f"rows.{kind}"
    match kind:
        case "frame":
            return frame
        case "csv":
            frame.to_csv(path, index=False)
        case "parquet":
            frame.to_parquet(path, row_group_size=rows)
        case "parts":
            path.mkdir()
            frame.iloc[:0].to_parquet(path / "00.parquet")
            (path / "._000.parquet").write_bytes(b"another program's")
            for number, start in enumerate(range(0, len(frame), rows)):
                part = frame.iloc[start : start + rows]
                part.to_parquet(path / f"{number:03}.parquet")
        case "excel":
            path = folder / "rows.xlsx"
            frame.to_excel(path, index=False)
        case "sql":
            engine = database(frame, folder)
            return SqlQuery("SELECT * FROM cohort ORDER BY rowid;", engine=engine)
        case "dask":
            from dask import dataframe

            lazy = dataframe.from_pandas(frame, npartitions=min(4, len(frame)))
            empty = lazy.partitions[0].map_partitions(lambda part: part.iloc[:0])
            return dataframe.concat([empty, lazy])
    return path
