"""Spectra of weights by their formulas: sums over all entries, radii as fractions."""

import cmath
import math
from fractions import Fraction


def radius(place: tuple[int, int], shape: tuple[int, int]) -> Fraction:
    """The squared radius of a bin; a frequency beyond half of the bins counts backwards."""
    folded = [k - n if 2 * k >= n else k for k, n in zip(place, shape, strict=True)]
    return sum((Fraction(k, n) ** 2 for k, n in zip(folded, shape, strict=True)), Fraction(0))


def kept_bins(shape: tuple[int, int], keep: Fraction) -> list[tuple[int, int]]:
    """The bins up to the radius of the ceil(keep * n)-th, row by row."""
    places = [(i, j) for i in range(shape[0]) for j in range(shape[1])]
    last = sorted(radius(place, shape) for place in places)[math.ceil(keep * len(places)) - 1]
    return [place for place in places if radius(place, shape) <= last]


def probabilities(matrix: list[list[float]], keep: Fraction) -> list[float]:
    """Normalized magnitudes of the kept bins."""
    shape = (len(matrix), len(matrix[0]))
    found = []
    for u, v in kept_bins(shape, keep):
        total = 0j
        for i, row in enumerate(matrix):
            for j, value in enumerate(row):
                total += value * cmath.exp(-2j * math.pi * (u * i / shape[0] + v * j / shape[1]))
        found.append(abs(total))
    return [max(each / sum(found), 1e-12) for each in found]


def spectral_kl(
    student: list[list[list[float]]], teacher: list[list[list[float]]], keep: Fraction
) -> float:
    """The divergence of models given as lists of matrices."""
    pairs = [
        (probabilities(own, keep), probabilities(other, keep))
        for own, other in zip(student, teacher, strict=True)
    ]
    bins = sum(len(p) for _, p in pairs)
    return sum(
        len(p) / bins * sum(t * math.log(t / s) for s, t in zip(q, p, strict=True))
        for q, p in pairs
    )
