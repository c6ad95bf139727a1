"""How a data set is dealt to clients: every training and test image to exactly one of them.

Each kind gives every client a share of every class. Training and test images of a class are dealt by
the same shares, so that a client is tested on its own mix of classes.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from killick.errors import OptionError
from killick.registry import Registry
from killick.settings import setting

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Shares = NDArray[np.float64]  # (clients, classes)


_TRIES = 1000


@dataclass(frozen=True)
class Partition:
    """How shares are drawn. The fields are its settings."""

    def shares(self, clients: int, classes: int, generator: "np.random.Generator") -> "Shares":
        """Each client's share of each class; columns add up to 1, or to what is used of a class."""
        raise NotImplementedError


PARTITIONS: Registry[type[Partition]] = Registry("partitions", "partition")


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Clients own some classes, in unequal parts: Bernoulli(p) x Dirichlet(alpha)."""

    p: float = setting(1.0, "probability that a client owns a class", above=0, most=1)
    alpha: float = setting(0.5, "concentration: smaller is more unequal", above=0)

    def shares(self, clients: int, classes: int, generator: "np.random.Generator") -> "Shares":
        """Owners of each class, then Dirichlet shares among them."""
        import numpy as np

        owned = generator.random((clients, classes)) < self.p
        for _ in range(_TRIES):  # a client without a class draws again
            empty = ~owned.any(1)
            owned[empty] = generator.random((int(empty.sum()), classes)) < self.p
        if not owned.any(0).all():
            raise OptionError(
                f"class number {int(owned.any(0).argmin())} has no owner among {clients} clients with"
                f" p={self.p:g}. Raise p or the number of clients."
            )
        found = np.zeros((clients, classes))
        for number, owners in enumerate(owned.T):
            found[owners, number] = generator.dirichlet(np.full(owners.sum(), self.alpha))
        return found


@dataclass(frozen=True)
class Iid(Partition):
    """Every client has an equal part of every class."""

    def shares(self, clients: int, classes: int, generator: "np.random.Generator") -> "Shares":
        """Equal shares."""
        import numpy as np

        return np.full((clients, classes), 1 / clients)


@dataclass(frozen=True)
class LongTail(Partition):
    """Equal clients, unequal classes: their sizes fall exponentially; what is cut off is not used."""

    ratio: float = setting(0.1, "size of the last class, of the first", above=0, most=1)

    def shares(self, clients: int, classes: int, generator: "np.random.Generator") -> "Shares":
        """Equal shares of what is left of each class."""
        import numpy as np

        tail = self.ratio ** (np.arange(classes) / max(1, classes - 1))
        return np.tile(tail / clients, (clients, 1))


for _name, _kind in (("dirichlet", Dirichlet), ("iid", Iid), ("long-tail", LongTail)):
    PARTITIONS.register(_name, _kind)


def deal(
    shares: "Shares", labels: "NDArray[Any]", generator: "np.random.Generator"
) -> "list[NDArray[np.int64]]":
    """The numbers of each client's images, in ascending order; each image at most once.

    Of a class with n images a client gets its share of n, rounded so that the total is exact.
    """
    import numpy as np

    dealt: list[list[NDArray[np.int64]]] = [[] for _ in shares]
    for number, column in enumerate(shares.T):
        members = generator.permutation(np.flatnonzero(labels == number))
        order = generator.permutation(len(shares))  # so that rounding favors no client
        ends = np.rint(np.cumsum(column[order]) * len(members)).astype(int)
        for client, part in zip(order, np.split(members, ends), strict=False):  # the rest is unused
            dealt[client].append(part)
    return [np.sort(np.concatenate(own)) for own in dealt]


def draw_partition(
    partition: Partition, clients: int, classes: int, labels: "dict[str, NDArray[Any]]", seed: int
) -> "dict[str, list[NDArray[np.int64]]]":
    """By set ("train", "test"), the numbers of each client's images; the same for the same seed."""
    import numpy as np

    if clients > min(map(len, labels.values())):
        name = min(labels, key=lambda each: len(labels[each]))
        raise OptionError(
            f"{clients} clients are more than the {len(labels[name])} {name} images. Use fewer."
        )
    shares = partition.shares(clients, classes, np.random.default_rng([seed, 0]))
    found = {
        name: deal(shares, each, np.random.default_rng([seed, place]))
        for place, (name, each) in enumerate(labels.items(), 1)
    }
    for name, least in (("train", 2), ("test", 1)):
        for client, own in enumerate(found[name]):
            if len(own) < least:
                raise OptionError(
                    f"client {client} has {len(own)} {name} images, needs {least}. Use fewer clients,"
                    " more data, or a more even partition (a larger alpha)."
                )
    return found


class ClassCounts(NamedTuple):
    """Clients x classes: how many images of each class a client has."""

    class_names: tuple[str, ...]
    counts: "NDArray[np.int64]"  # (clients, classes)

    @classmethod
    def of(
        cls,
        dealt: "list[NDArray[Any]]",
        labels: "NDArray[Any]",
        class_names: tuple[str, ...],
    ) -> "ClassCounts":
        """Of the numbers of each client's images."""
        import numpy as np

        found = [np.bincount(labels[own], minlength=len(class_names)) for own in dealt]
        return cls(class_names, np.array(found))

    def blocks(self) -> list[str]:
        """A line for each client: a darker block is a larger part of the largest entry."""
        import numpy as np

        steps = np.ceil(4 * self.counts / self.counts.max()).astype(int)
        return ["".join(2 * "·░▒▓█"[step] for step in line) for line in steps]

    def __str__(self) -> str:
        lines = [f"client  images  classes ({', '.join(self.class_names)})"]
        for client, (own, blocks) in enumerate(zip(self.counts, self.blocks(), strict=True)):
            lines.append(f"{client:6}  {own.sum():6}  {blocks}")
        return "\n".join(lines)
