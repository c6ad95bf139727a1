"""Effects in a factorial design with two levels: main effects and interactions."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

FACTORS = ("policy", "cutmix", "smoothing")
Cell = frozenset[str]  # the factors that are on


def effects(
    values: Mapping[Cell, Mapping[int, float]], factors: Sequence[str]
) -> dict[tuple[str, ...], dict[int, float]]:
    """By seed, the effect of each factor and of each interaction, where the cells for it are there.

    A main effect is the mean with the factor less the mean without; an interaction is half the
    difference between effects. Where cells are missing, it is over the complete parts of the design.

    Example:
        >>> on, off = frozenset({"a"}), frozenset()
        >>> effects({on: {0: 5.0}, off: {0: 3.0}}, ["a", "b"])
        {('a',): {0: 2.0}}
    """
    found = {}
    for size in range(1, len(factors) + 1):
        for chosen in itertools.combinations(factors, size):
            by_seed: dict[int, list[float]] = {}
            for part in _parts(chosen, factors):
                cells = [values.get(cell, {}) for cell in part]
                for seed in set.intersection(*(set(cell) for cell in cells)):
                    signs = (
                        1 if (size - len(cell & set(chosen))) % 2 == 0 else -1 for cell in part
                    )
                    total = sum(s * cell[seed] for s, cell in zip(signs, cells, strict=True))
                    by_seed.setdefault(seed, []).append(total / 2 ** (size - 1))
            if by_seed:
                found[chosen] = {
                    seed: sum(each) / len(each) for seed, each in sorted(by_seed.items())
                }
    return found


def _parts(chosen: Sequence[str], factors: Sequence[str]) -> Iterator[list[Cell]]:
    """For each setting of the other factors, the cells with all settings of the chosen ones."""
    for fixed in _subsets([factor for factor in factors if factor not in chosen]):
        yield [fixed | each for each in _subsets(chosen)]


def _subsets(factors: Sequence[str]) -> list[Cell]:
    sizes = range(len(factors) + 1)
    return [frozenset(c) for size in sizes for c in itertools.combinations(factors, size)]
