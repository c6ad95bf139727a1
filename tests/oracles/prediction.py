"""What `killick.predict` should say, number by number in float64, from the formulas."""

import math

import numpy as np

Array = np.ndarray


def two_layers(weights: list[Array], x: Array, reference: Array) -> Array:
    """Linear, ReLU, Linear on the pair `[reference, x - reference]` of one vector."""
    pair = [float(r) for r in reference] + [float(a - r) for a, r in zip(x, reference, strict=True)]
    first, first_bias, second, second_bias = weights
    hidden = [max(0.0, _dot(row, pair) + b) for row, b in zip(first, first_bias, strict=True)]
    return np.array([_dot(row, hidden) + b for row, b in zip(second, second_bias, strict=True)])


def softmax(logits: Array) -> Array:
    top = max(logits)
    powers = [math.exp(value - top) for value in logits]
    return np.array([power / sum(powers) for power in powers])


def entropy(probs: Array) -> float:
    return -sum(p * math.log(p) for p in probs if p > 0)


def unbiased_std(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def marginal(members: Array, scaling: str | None = None) -> dict:
    """Every field of the prediction from `(k, n, classes)` logits; no spread where k is 1."""
    k, n, _ = members.shape
    rows = [_one_image(members[:, i], scaling) for i in range(n)]
    fields = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    if k == 1:
        fields |= {"std": None, "mutual_information": None, "disagreement": None}
    return fields


def regression(members: Array) -> dict:
    """Mean and unbiased standard deviation of `(k, n, outputs)`."""
    _, n, outputs = members.shape
    mean, std = np.empty((n, outputs)), np.empty((n, outputs))
    for i in range(n):
        for j in range(outputs):
            mean[i, j] = sum(members[:, i, j]) / len(members)
            std[i, j] = unbiased_std(list(members[:, i, j]))
    return {"logits": mean, "std": std, "probs": None, "energy": None}


def _one_image(members: Array, scaling: str | None) -> dict:
    k, classes = members.shape
    logits = np.array([sum(members[:, j]) / k for j in range(classes)])
    if scaling is not None:
        c = _sigmoid_spread(members)
        logits = logits / (1 + math.exp(c) if scaling == "amp" else c)
    each = [softmax(row) for row in members]
    mean_of_each = np.array([sum(p[j] for p in each) / k for j in range(classes)])
    probs = softmax(logits)
    label = max(range(classes), key=lambda j: probs[j])
    others = [row for row in members if max(range(classes), key=lambda j, r=row: r[j]) != label]
    top = max(logits)
    fields = {
        "logits": logits,
        "probs": probs,
        "energy": -(top + math.log(sum(math.exp(value - top) for value in logits))),
    }
    if k > 1:
        fields["std"] = [unbiased_std([p[j] for p in each]) for j in range(classes)]
        fields["mutual_information"] = entropy(mean_of_each) - sum(map(entropy, each)) / k
        fields["disagreement"] = len(others) / k
    return fields


def _sigmoid_spread(members: Array) -> float:
    classes = members.shape[1]
    squashed = [[1 / (1 + math.exp(-value)) for value in members[:, j]] for j in range(classes)]
    return sum(map(unbiased_std, squashed)) / classes


def _dot(a: Array, b: list[float]) -> float:
    return sum(float(p) * float(q) for p, q in zip(a, b, strict=True))
