"""What the engine reads of a method's options."""

from typing import TYPE_CHECKING

from fedclust.schema.model import Model

#: The most clusters that a method looks for where it chooses their number itself.
MAX_FOUND_CLUSTERS = 1_000


class MethodOptions(Model):
    """Base of every method's options. A method adds its fields and overrides what differs.

    Attributes
    ----------
    n_clusters : int, tuple of int, or None
        Number of clusters K; several for a sweep; None where the method chooses K. Every method
        declares this field, with its own limits.
    """

    if TYPE_CHECKING:  # a field here would come before the method's own in every schema
        n_clusters: int | tuple[int, ...] | None

    @property
    def ks(self) -> tuple[int, ...]:
        """Every K, ascending; none where the method chooses K."""
        wanted = self.n_clusters
        return wanted if isinstance(wanted, tuple) else () if wanted is None else (wanted,)

    @property
    def evaluated(self) -> bool:
        """Whether a closing round measures the quality of the final centroids."""
        return False

    @property
    def resampled_models(self) -> int:
        """Number of resampled models that the clusters are compared with; 0: none."""
        return 0

    @property
    def compared_with_cloud(self) -> bool:
        """Whether the clusters are compared with one cloud, where the method allows it."""
        return False

    @property
    def round_limit(self) -> int | None:
        """The most rounds of the method; None: as many as ``max_rounds`` admits."""
        return None

    @property
    def phases(self) -> tuple[str, ...] | None:
        """The phases of the method that a session with these options can have; None: all."""
        return None

    @property
    def shape_numbers(self) -> dict[str, str]:
        """What the letters in the shapes of disclosures stand for, where it is known."""
        if self.n_clusters is None:
            return {"K": f"up to {MAX_FOUND_CLUSTERS}"}
        return {"K": str(self.n_clusters)} if isinstance(self.n_clusters, int) else {}
