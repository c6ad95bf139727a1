"""Measures of attention heads from their formulas, patch by patch in Python floats."""

import math


def slow_measures(weights, grid, prefix, normalizer, handling, pixels=(1.0, 1.0)):
    """Of one image and head: `weights[i][j]` is what token i pays to token j."""
    height, width = grid
    places = [(row, column) for row in range(height) for column in range(width)]
    largest = math.sqrt((height - 1) ** 2 + (width - 1) ** 2)
    unit = {
        "max_pair": largest,
        "diagonal": math.sqrt(height**2 + width**2),
        "side": max(height, width),
        "pixels": 1.0,
    }[normalizer]
    down, across = pixels if normalizer == "pixels" else (1.0, 1.0)
    names = ("distance", "distance_off_diagonal", "entropy", "diagonal_mass", "prefix_mass")
    sums = dict.fromkeys(names, 0.0)
    for i, (row, column) in enumerate(places):
        line = [float(weight) for weight in weights[prefix + i]]
        total = sum(line[prefix:])
        far = elsewhere = own = 0.0
        for j, (other_row, other_column) in enumerate(places):
            share = line[prefix + j] / total
            used = share if handling == "renormalized" else line[prefix + j]
            gap = math.sqrt(
                (down * (row - other_row)) ** 2 + (across * (column - other_column)) ** 2
            )
            far += used * gap / unit
            if i == j:
                own = used
            else:
                elsewhere += used
            if share > 0:
                sums["entropy"] -= share * math.log(share) / math.log(len(places))
        sums["distance"] += far
        sums["distance_off_diagonal"] += far / elsewhere if elsewhere else 0.0
        sums["diagonal_mass"] += own
        sums["prefix_mass"] += sum(line[:prefix])
    return {name: value / len(places) for name, value in sums.items()}
