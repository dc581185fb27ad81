"""Estimators for sessions as in scikit-learn: ``fit``, ``predict``, ``transform``, ``score``.

Without ``sites`` all rows belong to one site. By default a session runs in this process, as with
:func:`fedclust.simulate`. With ``coordinator=`` and ``session=`` the estimator takes part in a
session that an analyst defined, with the rows of one site. The estimators work in pipelines and
with ``clone``. ``import fedclust`` does not load this module, because it imports scikit-learn.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from numbers import Integral
from typing import Any, Self, TypeAlias
from warnings import warn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from fedclust.data import load
from fedclust.data.frame import is_frame
from fedclust.data.live_line import SlowWork
from fedclust.data.mapping import watch_reading
from fedclust.definition import LEAST_GROUP
from fedclust.local.simulate import as_declared, simulate
from fedclust.methods.common.assign import as_distances, dissimilarities_to_centroids
from fedclust.methods.registry import KMEANS, METHODS, SPECTRAL
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.result.predictions import Predictions
from fedclust.result.session_result import SessionResult
from fedclust.schema.feature import clustered
from fedclust.schema.model import json_value
from fedclust.site import Site
from fedclust.site.consent import ConsentRequest
from fedclust.wire.errors import DataError
from fedclust.wire.models import Definition

_ALONE = "site"
_Consent: TypeAlias = Callable[[ConsentRequest], bool] | bool | None


@dataclass(eq=False, repr=False)
class _Federated(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Base of the estimators: turns rows into a session and its result into attributes.

    A dataclass writes the ``__init__`` that scikit-learn wants: each parameter is kept as given.
    """

    n_clusters: Any = 8
    _: KW_ONLY
    scaling: str = "standard"
    missing: str = "impute"
    min_group_size: int = 5
    policy: Mapping[str, Any] | None = None
    options: Mapping[str, Any] | None = None
    features: Any = None
    random_state: Any = None

    def _session(self) -> tuple[str, dict[str, Any]]:
        """Return the method's name and its options."""
        raise NotImplementedError

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        sites: ArrayLike | None = None,
        persons: ArrayLike | None = None,
        coordinator: Site | None = None,
        session: str | None = None,
        consent: _Consent = None,
    ) -> Self:
        """Cluster the rows of several sites, or take part in a session with the rows of one.

        Parameters
        ----------
        X : array (n, d), DataFrame, or mapping of site name to one of these
            NaN is missing. The rows of a mapping are concatenated in its order.
        y : ignored
        sites : sequence of length n, optional
            The site of each row; by default one site has all. Names have lower-case letters,
            digits and hyphens. None may be missing.
        persons : sequence of length n, optional
            Which person each row belongs to; by default, and with ``protection: none``, each row
            is a person.
        coordinator : Site, optional
            With ``session``: take part in a session there, with the rows of this one site. The
            session's definition fixes features, seed and policy. A definition with another method
            or ``n_clusters`` is refused before anything is sent. A ``min_group_size`` above the
            session's applies to this site.
        session : str, optional
        consent : callable or bool, optional
            As for :meth:`fedclust.Site.participate`.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            Rows, parameters or names that do not fit.
        MethodFailure
            The session failed, for example because too few sites have enough rows.
        FedclustError
            In a session at a coordinator: see :meth:`fedclust.Site.participate`.
        """
        del y
        if (coordinator is None) != (session is None):
            raise ValueError("coordinator and session belong together")
        roster: list[str] = []
        if _is_by_site(X):
            if sites is not None:
                raise ValueError("a mapping of sites names them: leave sites out")
            roster = [str(name) for name in X]
            X, sites = _pool_rows(X, self.features, lacking=self._policy()["missing"] == "mask")
        if coordinator is not None and session is not None:
            if sites is not None:
                raise ValueError("in a session at a coordinator the rows are those of one site")
            return self._take_part(X, persons, coordinator, session, consent)
        rows = self._checked(X, reset=True)
        names = np.full(len(rows), _ALONE) if sites is None else _site_names(sites)
        if names.shape != (len(rows),):
            raise ValueError(f"sites has shape {names.shape}; one site is needed for each row")
        owners = None if persons is None else np.asarray(persons)
        if owners is not None and owners.shape != names.shape:
            raise ValueError(f"persons has shape {owners.shape}; one is needed for each row")
        roster = roster or [str(name) for name in np.unique(names)]
        places = {name: np.flatnonzero(names == name) for name in roster}
        method, config = self._session()
        result = simulate(
            method,
            {s: rows.iloc[at] if is_frame(rows) else rows[at] for s, at in places.items()},
            config=config,
            policy=self._policy(),
            features=self._declared(),
            seed=_session_seed(self.random_state),
            persons=None if owners is None else {s: owners[at] for s, at in places.items()},
        )
        labels = np.full(len(rows), -1, dtype=np.int64)
        for name, at in places.items():
            labels[at] = result.labels_[name]
        if self.features is not None and is_frame(rows):
            self._take_names(result.definition)
        self._keep(result, labels)
        for text in result.warnings_:
            warn(text, UserWarning, stacklevel=2)
        return self

    @classmethod
    def from_result(cls, result: SessionResult, **params: Any) -> Self:
        """Return a fitted estimator from the result of a session or from a loaded result.

        Parameters
        ----------
        result : SessionResult
            Only that of a site that took part gives ``labels_``: those of its own rows.
        params
            Parameters that the session's definition does not fix.

        Raises
        ------
        ValueError
            The session's method belongs to another estimator.
        """
        estimator = cls(**cls._defined(result.definition), **params)
        estimator._take_names(result.definition)
        estimator._keep(result, result.labels_ if result.site else None)
        return estimator

    @classmethod
    def _defined(cls, definition: Definition) -> dict[str, Any]:
        """Return the parameters that a session's definition fixes."""
        options = dict(definition.config)
        return {
            "policy": definition.policy.model_dump(include={"dissimilarity", "gamma"}) or None,
            "n_clusters": options.pop("n_clusters", None),
            "options": options,
            "scaling": definition.policy.scaling,
            "missing": definition.policy.missing,
            "min_group_size": definition.policy.min_group_size,
            "features": [feature.model_dump(mode="json") for feature in definition.features],
            "random_state": definition.seed,
        }

    def predict(self, X: Any) -> IntArray:
        """Return the cluster of each new row.

        Parameters
        ----------
        X : array (n, d), DataFrame, or mapping of site name to one of these
            A DataFrame's columns are found by name where features were declared; an array's are
            the features in their order.

        Returns
        -------
        (n,) int64
            -1 where missing values forbid a label.

        Raises
        ------
        ValueError
            The rows do not fit; the message names column and row.
        """
        check_is_fitted(self)
        with _value_errors():
            return self.result_.predict(self._checked(X, reset=False))

    def predict_details(self, X: Any) -> Predictions:
        """Return the cluster of each new row, its margin, and whether the row lies outside.

        Parameters
        ----------
        X : as for :meth:`predict`

        Returns
        -------
        Predictions
        """
        check_is_fitted(self)
        with _value_errors():
            return self.result_.predict_details(self._checked(X, reset=False))

    def _take_part(
        self, X: Any, persons: Any, coordinator: Site, session: str, consent: _Consent
    ) -> Self:
        given: Any = {"person": persons, "min_group_size": _least_group_size(self._policy())}
        definition = coordinator.check(session, X, **given).definition
        method, config = self._session()
        for name, own, there in (
            ("method", method, definition.algorithm),
            ("n_clusters", config["n_clusters"], definition.config.get("n_clusters")),
        ):
            if own != json_value(there):
                raise ValueError(
                    f"{session} has {name} {there!r}, this estimator {own!r}: give it the "
                    "session's, or ask the analyst for another session. Nothing was sent."
                )
        result = coordinator.participate(session, X, consent=consent, **given)
        self._take_names(definition)
        self._keep(result, result.labels_)
        return self

    def _take_names(self, definition: Definition) -> None:
        names = [feature.name for feature in clustered(definition.features)]
        self.n_features_in_ = len(names)
        self.feature_names_in_ = np.array(names, dtype=object)

    def _keep(self, result: SessionResult, labels: IntArray | None) -> None:
        self.result_ = result
        if labels is not None:
            self.labels_ = labels
        self.n_iter_, self.inertia_ = result.n_rounds_, result.inertia_

    def _policy(self) -> dict[str, Any]:
        return {
            "scaling": self.scaling,
            "missing": self.missing,
            "min_group_size": self.min_group_size,
            **_mapping_option("policy", self.policy),
        }

    def _config(self, **named: Any) -> dict[str, Any]:
        """Return the method's options; the named ones override ``options``."""
        wanted = {
            **_mapping_option("options", self.options),
            "n_clusters": self.n_clusters,
            **named,
        }
        return {name: json_value(value) for name, value in wanted.items()}

    def _declared(self) -> Any:
        if self.features is not None:
            return self.features
        places = [f"x{j}" for j in range(self.n_features_in_)]
        return [str(name) for name in getattr(self, "feature_names_in_", places)]

    def _checked(self, X: Any, *, reset: bool) -> Any:
        """Return rows as sessions take them, their number of columns and names checked."""
        if _is_by_site(X):
            X, _ = _pool_rows(X, self.features, lacking=self._policy()["missing"] == "mask")
        declared = self.features
        if not reset and self.result_.provenance is not None:
            declared = self.result_.features
        if declared is not None and is_frame(X):
            # The session finds its columns by name and checks them; levels may be text.
            return X
        rows = validate_data(
            self,
            X,
            reset=reset,
            dtype=np.float64,
            ensure_all_finite="allow-nan",
            # A site with fewer rows could never answer.
            ensure_min_samples=_least_group_size(self._policy()) if reset else 1,
        )
        if reset and declared is not None:
            # New rows have no outcomes.
            self.n_features_in_ -= len(_outcome_columns(declared))
        return rows

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


@dataclass(eq=False, repr=False)
class FederatedKMeans(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    _Federated,
):
    """k-means over the rows of several sites, or another method with centroids.

    Parameters
    ----------
    n_clusters : int
        K; where the method can try several, also a list of them.
    method : str
        Any installed method whose clusters have centroids, such as ``"kfed"``. Some need
        ``features`` with bounds, and tell in ``result_.result.bounds`` what they have proved.
    scaling : {"standard", "bounds", "none"}
        Unlike scikit-learn's k-means, sessions scale by default.
    missing : {"drop", "impute", "mask"}
    min_group_size : int
        Fewest persons behind every number that a site sends, at least 3.
    policy : mapping, optional
        The rest of a session's policy, such as ``{"max_rounds": 20}``; ``{"protection": "none"}``
        computes with exact rows, as plain k-means does.
    options : mapping, optional
        The rest of the method's options, such as ``{"candidates": 4}``.
    features : sequence of mapping or str, optional
        As for :func:`fedclust.simulate`: bounds, kinds, levels, transforms. By default the columns
        of X, as numbers.
    random_state : int, RandomState or None
        An int is the session's seed.

    Attributes
    ----------
    labels_ : (n,) int64
        In the order of X; -1 where missing values forbid a label.
    cluster_centers_ : (K, d) float64
        In the data's own units. Fewer than ``n_clusters`` where the rows hold no more.
    inertia_ : float or None
        Sum of squared distances in the scaled space over the points of the protected table; None
        without the closing evaluation.
    n_iter_ : int
        Rounds of the method.
    n_features_in_ : int
    feature_names_in_ : (d,) ndarray of str
        Where X has column names.
    result_ : SessionResult
        Everything else.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X = load_iris().data
    >>> hospital = ["berlin", "oslo", "porto"] * 50
    >>> kmeans = FederatedKMeans(n_clusters=2, random_state=0).fit(X, sites=hospital)
    >>> kmeans.cluster_centers_.shape
    (2, 4)
    >>> kmeans.predict([[5.0, 3.4, 1.5, 0.2]])
    array([0])
    """

    method: str = field(default=KMEANS, kw_only=True)

    def transform(self, X: Any) -> FloatArray:
        """Return each row's distances from the centroids, in the scaled space.

        Parameters
        ----------
        X : array (n, d), DataFrame, or mapping of site name to one of these

        Returns
        -------
        (n, K) float64
            NaN where missing values forbid one.
        """
        return as_distances(self.result_.result, self._dissimilarities(X))

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the sum of the rows' dissimilarities from the nearest centroid.

        Parameters
        ----------
        X : array (n, d), DataFrame, or mapping of site name to one of these
            Rows without a label because of missing values do not count.
        y : ignored
        """
        del y
        nearest = self._dissimilarities(X).min(axis=1)
        return -float(nearest[np.isfinite(nearest)].sum())

    def _dissimilarities(self, X: Any) -> FloatArray:
        check_is_fitted(self)
        rows, result = self._checked(X, reset=False), self.result_
        lacking = result.definition.policy.missing == "mask"
        with _value_errors(), SlowWork("measuring distances") as work:
            given = watch_reading(rows, work.read)
            table = load(given, result.features, lacking=lacking, new=True)
            return dissimilarities_to_centroids(result.result, table.X)

    def _session(self) -> tuple[str, dict[str, Any]]:
        if not _has_centroids(self.method):
            known = ", ".join(filter(_has_centroids, sorted(METHODS)))
            said = f"method is {self.method!r}; the methods with centroids are {known}"
            raise ValueError(METHODS.problem(self.method) or said)
        return self.method, self._config()

    @classmethod
    def _defined(cls, definition: Definition) -> dict[str, Any]:
        if not _has_centroids(definition.algorithm):
            raise ValueError(
                f"the session's method is {definition.algorithm}: take FederatedSpectralClustering"
            )
        return {**super()._defined(definition), "method": definition.algorithm}

    def _keep(self, result: SessionResult, labels: IntArray | None) -> None:
        super()._keep(result, labels)
        self.cluster_centers_ = result.cluster_centers_
        self._n_features_out = len(self.cluster_centers_)


@dataclass(eq=False, repr=False)
class FederatedSpectralClustering(_Federated):
    """Clusters of any shape over the rows of several sites.

    Parameters
    ----------
    n_clusters : int
    alignment : {"landmarks", "sign", "procrustes", "none"}
        With any but the first only sites that took part can label new rows: ``predict`` gives -1.
    scaling, missing, min_group_size, policy, options, features, random_state
        As for :class:`FederatedKMeans`.

    Attributes
    ----------
    labels_, inertia_, n_iter_, n_features_in_, feature_names_in_, result_
        As for :class:`FederatedKMeans`. Centroids do not define these clusters, so there is no
        ``transform`` and no ``score``.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(1200, noise=0.05, random_state=0)
    >>> hospital = ["berlin", "oslo", "porto"] * 400
    >>> spectral = FederatedSpectralClustering(n_clusters=2, random_state=0)
    >>> labels = spectral.fit_predict(X, sites=hospital)
    >>> bool((labels == y).all() or (labels != y).all())
    True
    """

    alignment: str = field(default="landmarks", kw_only=True)

    def _session(self) -> tuple[str, dict[str, Any]]:
        return SPECTRAL, self._config(alignment=self.alignment)

    @classmethod
    def _defined(cls, definition: Definition) -> dict[str, Any]:
        if definition.algorithm != SPECTRAL:
            raise ValueError(
                f"the session's method is {definition.algorithm}: take FederatedKMeans"
            )
        params = super()._defined(definition)
        return {**params, "alignment": params["options"].pop("alignment")}


# --- rows and options as scikit-learn's users hand them over, checked and named -------------------


def _is_by_site(X: Any) -> bool:
    # scipy's dok_matrix is a dict.
    return isinstance(X, Mapping) and not hasattr(X, "shape")


def _declared(features: Iterable[Any]) -> list[dict[str, Any]]:
    """Return declared features as mappings, without what is none: the session refuses it."""
    return [each for each in as_declared(features) if isinstance(each, dict)]


def _outcome_columns(features: Iterable[Any]) -> set[str]:
    """Return the columns of rows that are outcomes and no features."""
    columns: dict[bool, set[str]] = {True: set(), False: set()}
    for each in _declared(features):
        named = (each.get("name"), each.get("event"))
        columns[each.get("role") == "outcome"] |= {str(name) for name in named if name is not None}
    return columns[True] - columns[False]


def _site_names(sites: ArrayLike) -> NDArray[np.str_]:
    """Return the site of each row as text; ValueError for a row without one."""
    names = np.asarray(sites)
    # None, NaN (not equal to itself) and pandas' NA and NaT are not names.
    lacking = [
        row
        for row, name in enumerate(names.ravel().tolist())
        if name is None or str(name) in ("", "<NA>", "NaT") or bool(name != name)
    ]
    if lacking:
        raise ValueError(f"sites: row {lacking[0]} has none; each row needs one")
    return names.astype(str)


def _check_same_columns(sites: Mapping[str, Any], features: Any) -> None:
    """Raise where a site's frame lacks a feature that another site has."""
    every = dict.fromkeys(str(column) for frame in sites.values() for column in frame.columns)
    if features is not None:
        names = [str(each.get("name")) for each in _declared(features)]
        every = dict.fromkeys(name for name in names if name in every)
    for site, frame in sites.items():
        own = set(map(str, frame.columns))
        absent = [column for column in every if column not in own]
        if absent:
            raise ValueError(
                f"site {site!r} has no column {absent[0]!r}, which others have: with "
                "missing='mask' sites may lack features"
            )


@contextmanager
def _value_errors() -> Iterator[None]:
    """Turn a DataError into the ValueError that scikit-learn's users expect."""
    try:
        yield
    except DataError as error:
        raise ValueError(str(error)) from None


def _mapping_option(name: str, value: Any) -> Mapping[str, Any]:
    """Return an estimator's mapping parameter; ValueError if it is something else."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is {value!r}: it must be a mapping of names to values")
    return value


def _pool_rows(
    sites: Mapping[str, Any], features: Any, *, lacking: bool
) -> tuple[Any, NDArray[np.str_]]:
    """Return the concatenated rows of all sites, and the site of each row.

    ``lacking``: whether a site may lack columns.
    """
    if not sites:
        raise ValueError("name at least one site")
    parts = list(sites.values())
    names = np.repeat([str(name) for name in sites], [len(part) for part in parts])
    if not all(is_frame(part) for part in parts):
        widths = {np.shape(part)[1:] for part in parts}
        if len(widths) != 1:
            raise ValueError("the sites' rows have different numbers of columns")
        return np.concatenate([np.asarray(part) for part in parts]), names
    import pandas as pd

    if not lacking:
        _check_same_columns(sites, features)
    # A column that a site lacks is NaN there, as `missing: mask` reads it.
    return pd.concat(parts, ignore_index=True), names


def _session_seed(random_state: Any) -> int:
    """Return a session's seed: the number given, or one drawn as scikit-learn draws."""
    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _has_centroids(method: str) -> bool:
    return method in METHODS and not METHODS[method].by_prototypes


def _least_group_size(policy: Mapping[str, Any]) -> int:
    """Return a policy's ``min_group_size``; ValueError unless it is large enough."""
    smallest = policy["min_group_size"]
    if not isinstance(smallest, Integral) or smallest < LEAST_GROUP:
        raise ValueError(
            f"min_group_size is {smallest!r}: it must be a number from {LEAST_GROUP} on; "
            'policy={"protection": "none"} works on exact rows'
        )
    return int(smallest)
