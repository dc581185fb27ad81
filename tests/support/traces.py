"""What an attacker makes of the answers that a site sent: statistics, whatever the method."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms import engine, evaluation, releasing
from fedclust.algorithms.base import Space
from fedclust.algorithms.sweep import SweepPayload
from fedclust.privacy.guard import Guard
from fedclust.simulate import SimulationResult, TraceEntry
from support.attacker import Statistic, cells, total, vectors


class Released(dict[tuple[str, int], dict[str, NDArray[np.int64]]]):
    """What the guard let go: (site, round) -> candidate -> cell of each row.

    ``means`` : partition and number of cells -> the cells' means (K, d), scaled, with their shares
    rounded.
    ``rounded`` : site -> what went out, in order: the cell of each row, and which shares (K, b)
    were rounded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.means: dict[tuple[bytes, int], NDArray[np.float64]] = {}
        self.rounded: dict[str, list[tuple[NDArray[np.int64], NDArray[np.bool_]]]] = {}


@contextlib.contextmanager
def watched() -> Iterator[Released]:
    """Note which rows every released cell holds, for the attacker's judge."""
    seen = Released()
    answering: list[tuple[str, int]] = []
    step, release, round_means = engine.local_step, Guard.release, releasing.round_prevalence
    choose = Guard.round_shares
    latest: list[NDArray[np.int64]] = []

    def local_step(*given: Any, **named: Any) -> Any:
        site = named["site"]
        answering.append((site, named["round_number"]))
        before = len(seen.rounded.get(site, []))
        answer = step(*given, **named)
        if _held_back(answer[0]):
            # The guard was asked, and nothing went out.
            seen.pop(answering[-1], None)
            del seen.rounded.get(site, [])[before:]
        return answer

    def released(guard: Guard, labels: Any, n_cells: int, candidate: str = "0") -> Any:
        kept = release(guard, labels, n_cells, candidate)
        # The last one of a candidate in a round is the one that is sent.
        seen.setdefault(answering[-1], {})[candidate] = kept
        return kept

    def chosen(guard: Guard, shares: Any, labels: Any, n_cells: int) -> Any:
        flags = choose(guard, shares, labels, n_cells)
        latest[:] = [labels]
        seen.rounded.setdefault(answering[-1][0], []).append((labels, flags))
        return flags

    def rounded(moments: Any, *given: Any, **named: Any) -> Any:
        kept = round_means(moments, *given, **named)
        seen.means[latest[-1].tobytes(), len(kept.means)] = kept.means
        return kept

    with (
        mock.patch.object(engine, "local_step", local_step),
        mock.patch.object(releasing, "round_prevalence", rounded),
        mock.patch.object(Guard, "release", released),
        mock.patch.object(Guard, "round_shares", chosen),
    ):
        yield seen


def _held_back(payload: Any) -> bool:
    """Whether an answer says of itself that it tells no cell; AssertionError where it does."""
    if getattr(payload, "sent", None) is None or payload.sent.any():
        return False
    told = (payload.counts, payload.means, payload.centroids)
    assert not any(numbers.any() for numbers in told), "held back, and yet told"
    assert payload.value is None, "held back, and yet valued"
    return True


def statistics_of(
    result: SimulationResult, site: str, seen: Released | None = None
) -> list[Statistic]:
    """Return every statistic of rows that a site sent in a session, scaled.

    With ``seen``, from :func:`watched`, the sets' members are known to the judge.

    Raises
    ------
    AssertionError
        For a payload of a form that nobody has told this attacker to read.
    """
    space = Space(result.result_.center, result.result_.scale)
    entries = [entry for entry in result.trace_ if entry.site == site]
    found = []
    for entry in entries:
        for k, part in _parts(entry):
            sent = list(_statistics(part, space, k, result.definition_.policy.min_group_size))
            n = len(result.labels_[site])
            found += sent if seen is None else _with_members(sent, seen, part, n, k)
    return found


def _parts(entry: TraceEntry) -> list[tuple[str, TraceEntry]]:
    """Return the answers of a sweep's every K, and how the guard's candidates of it begin."""
    if not isinstance(entry.payload, SweepPayload):
        return [("", entry)]
    tasks, answers = entry.task.common, entry.payload.parts
    return [
        (f"{k}, ", replace(entry, task=replace(entry.task, common=common), payload=payload))
        for k, common, payload in zip(tasks.n_clusters, tasks.parts, answers, strict=True)
    ]


def _candidates(seen: Released, entry: TraceEntry, k: str) -> dict[str, NDArray[np.int64]]:
    """Return the partitions that a site sent of one K in a round."""
    answer = seen.get((entry.site, entry.round), {})
    return {name.removeprefix(k): own for name, own in answer.items() if name.startswith(k)}


def partitions_of(seen: Released, site: str) -> list[tuple[str, NDArray[np.int64]]]:
    """Return every partition whose numbers a site sent, in order, also where only counts went."""
    return [
        (f"round {number}, {candidate}", labels)
        for (name, number), answer in seen.items()
        if name == site
        for candidate, labels in answer.items()
    ]


def misattributed(
    statistics: Iterable[Statistic], rows: NDArray[np.float64], within: NDArray[np.float64]
) -> list[str]:
    """Return what is not the sum of the rows that the guard let go for it.

    Parameters
    ----------
    statistics : iterable of Statistic
        With members.
    rows : (n, d) float64
        Scaled.
    within : (d,) float64
        How far a sum may be off: what rule 4 may add or take away; next to nothing elsewhere.
    """
    return [
        item.name
        for item in statistics
        if item.members is not None
        and item.count
        and (np.abs(item.vector - item.members @ rows) > within).any()
    ]


def exact_sums(
    result: SimulationResult, site: str, rows: NDArray[np.float64], seen: Released, *, p: int
) -> list[str]:
    """Return which costs, distances and silhouettes of yes/no rows undo the rounding of shares.

    Where 1 to ``p`` - 1 rows of a cell have a property, or lack it, the share goes rounded. A sum
    over the true rows, instead of over what the rounded shares stand for, would tell it exactly.

    Parameters
    ----------
    rows : (n, d) float64
        The site's rows, 0 or 1.
    """
    space = Space(result.result_.center, result.result_.scale)
    scaled = space.to_scaled(rows)
    told: list[str] = []
    for of, entry in (pair for each in result.trace_ for pair in _parts(each)):
        payload = entry.payload
        if entry.site != site or payload is None or not hasattr(payload, "costs"):
            continue
        partitions, common = _candidates(seen, entry, of), entry.task.common
        names = getattr(common, "names", None)
        for i, name in enumerate(names or list(partitions)[-1:]):
            labels = partitions[name]
            centroids = common.centroids[i] if names else common.centroids
            # The evaluation's cells are the method's; several may stand for one centroid.
            cells = getattr(common, "cells", np.arange(len(centroids)))
            place = np.where(labels >= 0, cells[labels], -1)
            moved = _moved(scaled, labels, seen.means[labels.tobytes(), len(cells)], space)
            added = [
                float(moved[j] @ _slopes(space, centroids[cells[j]])) for j in range(len(moved))
            ]
            shift = np.bincount(cells[: len(moved)], added, minlength=len(centroids))
            for k in range(len(centroids)):
                members = place == k
                ones = rows[members].sum(axis=0)
                fewer = np.minimum(ones, members.sum() - ones)
                if not ((fewer > 0) & (fewer < p)).any():
                    continue
                for field, exact in _sums_over(scaled[members], centroids, k).items():
                    sent = getattr(payload, field, None)
                    if sent is None:
                        continue
                    number = sent[i][k] if names else sent[k]
                    if field == "costs" and abs(shift[k]) <= 1e-9 * exact:
                        continue  # Shares rounded up and down came out even.
                    if np.isclose(number, exact, rtol=1e-9, atol=0.0):
                        told.append(f"round {entry.round}, {entry.phase}, {field} of cell {k}")
    return told


def _moved(
    scaled: NDArray[np.float64],
    labels: NDArray[np.int64],
    means: NDArray[np.float64],
    space: Space,
) -> NDArray[np.float64]:
    """Return by how many rows (K, d) each share was rounded up or down."""
    moved = [
        ((labels == j).sum() * means[j] - scaled[labels == j].sum(axis=0)) * space.scale
        for j in range(len(means))
    ]
    return np.array(moved)


def _slopes(space: Space, centroid: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what one more row with each property adds to the cost at a centroid, (d,)."""
    nought, one = (space.to_scaled(np.full((1, len(centroid)), x))[0] for x in (0.0, 1.0))
    return np.asarray((one - centroid) ** 2 - (nought - centroid) ** 2)


def _sums_over(
    rows: NDArray[np.float64], centroids: NDArray[np.float64], k: int
) -> dict[str, float]:
    squares = ((rows[:, None, :] - centroids[None]) ** 2).sum(axis=2)
    own = np.sqrt(squares[:, k])
    sums = {"costs": float(squares[:, k].sum()), "distances": float(own.sum())}
    if len(centroids) > 1:
        other = np.sqrt(np.delete(squares, k, axis=1).min(axis=1))
        sums["silhouettes"] = float(((other - own) / np.maximum(own, other)).sum())
    return sums


def _with_members(
    sent: list[Statistic], seen: Released, entry: TraceEntry, n: int, k: str
) -> list[Statistic]:
    partitions = _candidates(seen, entry, k)
    known, number = [], dict.fromkeys([item.group for item in sent], 0)
    for item in sent:
        if not item.group:
            known.append(replace(item, members=np.ones(n, dtype=np.int64)))
            continue
        # Groups name the candidate where there are several; else the vectors' own partition.
        candidate = item.group.rpartition(", ")[2]
        if not partitions:
            assert item.count == 0, "rows were sent that the guard has not seen"
            continue
        if candidate not in partitions:
            candidate = "members" if "members" in partitions else list(partitions)[-1]
        labels = partitions[candidate]
        if entry.phase == evaluation.NAME:
            # Several of the method's cells may stand for one centroid.
            labels = np.where(labels >= 0, entry.task.common.cells[labels], -1)
        members = labels == number[item.group]
        assert members.sum() == item.count, "the judge looks at other rows than were sent"
        known.append(replace(item, members=members.astype(np.int64)))
        number[item.group] += 1
    return known


def _statistics(entry: TraceEntry, space: Space, k: str, p: int) -> Iterable[Statistic]:
    payload = entry.payload
    if payload is None:
        return []
    name = f"round {entry.round}, {k}{entry.phase}"
    fields = set(type(payload).model_fields)
    found: list[Statistic] = []
    if fields == {"n", "observed", "mean", "m2"}:
        scaled = space.to_scaled(payload.mean)
        found.append(total(name, payload.n, scaled))
        found += vectors(f"{name}, own units", payload.mean[None])
    elif {"counts", "sums"} <= fields and payload.counts.ndim == 2:
        for i, candidate in enumerate(entry.task.common.names):
            found += cells(f"{name}, {candidate}", payload.counts[i], payload.sums[i])
    elif {"counts", "sums"} <= fields:
        found += cells(name, payload.counts, payload.sums)
    elif {"members", "means"} <= fields:
        # The counts beside them are of another partition, whose means stay at the site.
        found += cells(name, payload.members, payload.members[:, None] * payload.means)
    elif {"counts", "means"} <= fields:
        if "m2" in fields:
            found += _of_two(name, payload)
        found += cells(name, payload.counts, payload.counts[:, None] * payload.means)
        if "centroids" in fields:
            found += _of_multipliers(name, payload, entry.task.site.multipliers, p)
    else:
        raise AssertionError(f"teach the attacker to read {type(payload).__name__}")
    if getattr(payload, "totals", None) is not None:
        found.append(total(f"{name}, totals", payload.totals.n, payload.totals.mean))
    return found


def _of_multipliers(name: str, payload: Any, mu: NDArray[np.float64], p: int) -> list[Statistic]:
    """Return the optimal centroids that were told, and the means behind them of few rows.

    Of n rows with multipliers mu, the best centroid is their mean minus mu / (2 n): a single row's
    gives the row away to whoever knows mu.
    """
    told = payload.centroids[payload.sent]
    found = vectors(f"{name}, centroids", told)
    for n in range(1, p):
        found += vectors(f"{name}, centroids of {n} rows", told + mu[payload.sent] / (2.0 * n))
    return found


def _of_two(name: str, payload: Any) -> list[Statistic]:
    """Return the two rows that a Gaussian of two gives away, feature by feature.

    Which of a feature's two values goes with which of another's nothing tells: the attacker lets
    all go up together.
    """
    found = []
    for cell in np.flatnonzero(payload.counts == 2):
        apart = np.sqrt(payload.m2[cell] / 2.0)
        found += vectors(f"{name}, cell {cell}", payload.means[cell] + np.outer([1, -1], apart))
    return found
