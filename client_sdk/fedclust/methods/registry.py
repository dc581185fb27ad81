"""The methods by name: those of this package, and those of other distributions.

No other module names a method. A distribution adds one by an entry point of the group
``fedclust.methods``: its name is the method's, its object the method's :class:`Method`. A method of
this package comes through the same door, and before all others. ``dual`` is this project's, in a
distribution of its own.
"""

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from importlib.metadata import EntryPoint, entry_points

from fedclust.methods.common.options import variant_models
from fedclust.schema.method import AnyMethod, Method

GROUP = "fedclust.methods"
#: In the order in which the API describes them.
BUILT_IN = ("lloyd", "fkm", "kfed", "spectral", "overlap", "overlap_oneshot", "mixture", "ward")
#: This project's methods in distributions of their own, with these.
SEPARATE = {"dual": "fedclust-dual"}
#: What scikit-learn's estimators run where the user names no method.
KMEANS, SPECTRAL = "fkm", "spectral"


class MethodRegistry(MutableMapping[str, AnyMethod]):
    """Methods by name, each imported when it is first asked for.

    An entry point that gives no usable method is left out, and the others are not affected.

    Parameters
    ----------
    built_in : iterable of EntryPoint
    installed : callable
        Returns the entry points of all distributions.
    """

    def __init__(
        self, built_in: Iterable[EntryPoint], installed: Callable[[], Iterable[EntryPoint]]
    ) -> None:
        self._built_in = {entry.name: entry for entry in built_in}
        self._installed = installed
        self._plugins: dict[str, EntryPoint] | None = None
        self._methods: dict[str, AnyMethod] = {}
        self._problems: dict[str, str] = {}

    def __getitem__(self, name: str) -> AnyMethod:
        if name not in self._methods:
            built_in = self._built_in.get(name)
            if built_in is not None:
                self._methods[name] = built_in.load()
            else:
                self._methods[name] = self._load(self._found()[name])
        return self._methods[name]

    def __setitem__(self, name: str, method: AnyMethod) -> None:
        self._methods[name] = method

    def __delitem__(self, name: str) -> None:
        del self._methods[name]

    def __iter__(self) -> Iterator[str]:
        names = dict.fromkeys([*self._built_in, *sorted(self._found()), *self._methods])
        return iter([name for name in names if name in self])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def problem(self, name: str) -> str | None:
        """Return why a method that is known here cannot be used, and what to do; or None."""
        missing = None
        if name not in self and name in SEPARATE:
            missing = (
                f"the method {name!r} is in a distribution that is not installed here: "
                f"pip install {SEPARATE[name]}"
            )
        return self._problems.get(name, missing)

    def problems(self) -> tuple[str, ...]:
        """Return why installed methods cannot be used, and what to do; sorted by method."""
        _ = list(self)
        return tuple(text for _, text in sorted(self._problems.items()))

    def distribution(self, name: str) -> str:
        """Return the name of the distribution that has an installed method."""
        entry = None if name in self._built_in else self._found().get(name)
        return "fedclust" if entry is None else _distribution(entry)

    def _found(self) -> dict[str, EntryPoint]:
        """Return the entry points of other distributions; of two with one name, neither."""
        if self._plugins is None:
            found: dict[str, EntryPoint] = {}
            for entry in self._installed():
                other = self._built_in.get(entry.name) or found.setdefault(entry.name, entry)
                if other is not entry:
                    self._problems[entry.name] = _clash(entry, other)
            self._plugins = {
                name: entry for name, entry in found.items() if name not in self._problems
            }
        return self._plugins

    def _load(self, entry: EntryPoint) -> AnyMethod:
        """Return the method of an entry point; KeyError, and a problem, where it has none."""
        if entry.name in self._problems:
            raise KeyError(entry.name)
        try:
            return _require_method(entry.name, entry.load())
        except Exception as error:  # whatever a foreign module raises, the others still work
            self._problems[entry.name] = (
                f"the method {entry.name!r} of {_owner(entry)} cannot be used: "
                f"{type(error).__name__}: {error}. {_upgrade_advice(_distribution(entry))}"
            )
            raise KeyError(entry.name) from error


def _require_method(name: str, found: object) -> AnyMethod:
    """Return what an entry point holds, where it is a method of that name; else TypeError."""
    if not isinstance(found, Method):
        raise TypeError(f"{GROUP} needs a fedclust.schema.method.Method")
    if found.name != name:
        raise TypeError(f"the entry point is called {name!r}, its method {found.name!r}")
    for model in variant_models(found.options):
        if "n_clusters" not in model.model_fields:
            raise TypeError(f"{model.__name__} needs a field n_clusters")
    return found


def _clash(entry: EntryPoint, other: EntryPoint) -> str:
    owner, used = (_owner(other), "neither") if other.dist else ("fedclust", "that of fedclust")
    return (
        f"{owner} and {_owner(entry)} both provide a method {entry.name!r}, and {used} is used. "
        f"Uninstall one: pip uninstall {_distribution(entry)}"
    )


def _upgrade_advice(name: str) -> str:
    return f"Upgrade or uninstall it: pip install --upgrade {name}, pip uninstall {name}"


def _owner(entry: EntryPoint) -> str:
    version = "" if entry.dist is None else f" {entry.dist.version}"
    return f"the distribution {_distribution(entry)}{version}"


def _distribution(entry: EntryPoint) -> str:
    return entry.module if entry.dist is None else entry.dist.name


METHODS = MethodRegistry(
    (EntryPoint(name, f"fedclust.methods.{name}:METHOD", GROUP) for name in BUILT_IN),
    lambda: entry_points(group=GROUP),
)
