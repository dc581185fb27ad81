"""What a study file such as `support_study.py` says: patients, hospitals, definition."""

from __future__ import annotations

import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Study:
    """What a study file says.

    Attributes
    ----------
    rows : DataFrame
        All patients of all hospitals, which only a rehearsal has in one place.
    said : dict
        The constants of the file, by name.
    """

    rows: pd.DataFrame
    said: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Study:
        """Read a study file; SystemExit where the package that has its data is absent."""
        said = runpy.run_path(str(path))
        try:
            rows = said["load"]()
        except ModuleNotFoundError as error:
            sys.exit(f"{path.name} needs {error.name}: .venv/bin/pip install -e '.[examples]'")
        return cls(rows.reset_index(drop=True), said)

    def features(self, *, more: bool = False) -> list[dict[str, Any]]:
        """Return the clustered columns as a definition declares them, with ``more`` all of them."""
        text = self.said["FEATURES"] + ";" + (self.said.get("MORE_FEATURES", "") if more else "")
        found = []
        for each in filter(str.strip, text.split(";")):
            name, lower, upper, *unit = each.split()
            about = {"unit": " ".join(unit), "lower": float(lower), "upper": float(upper)}
            found.append({"name": name, **about})
        return found

    @property
    def outcomes(self) -> list[dict[str, Any]]:
        """The outcomes as a definition declares them."""
        declared = self.said["OUTCOMES"].items()
        return [{"name": name, "role": "outcome", **about} for name, about in declared]

    def columns(self, *, more: bool = False) -> list[str]:
        """Return the columns of a hospital's table: features, outcomes, and events of times."""
        named = [each["name"] for each in self.features(more=more) + self.outcomes]
        return named + [each["event"] for each in self.outcomes if "event" in each]

    def split(self, seed: int) -> dict[str, pd.DataFrame]:
        """Divide the patients among the hospitals: each draws the groups that it sees more often.

        Small hospitals draw first, and the largest has all others. Sizes count as proportions.
        """
        rng = np.random.default_rng(seed)
        hospitals = self.said["HOSPITALS"]
        group = self.rows[self.said["CASE_MIX"]].astype(str)
        whole = sum(size for size, *_ in hospitals.values())
        left, found = np.arange(len(self.rows)), {}
        for name, (size, oftener, _) in sorted(hospitals.items(), key=lambda item: item[1][0]):
            weight = group.iloc[left].map(oftener).fillna(1.0).to_numpy()
            n = min(len(left), round(size * len(self.rows) / whole))
            drawn = rng.choice(left, n, replace=False, p=weight / weight.sum())
            found[name] = self.rows.iloc[np.sort(drawn)]
            left = np.setdiff1d(left, drawn)
        largest = max(hospitals, key=lambda name: hospitals[name][0])
        found[largest] = self.rows.loc[np.sort([*found[largest].index, *left])]
        columns = self.columns(more=True)
        return {name: found[name][columns] for name in hospitals}
