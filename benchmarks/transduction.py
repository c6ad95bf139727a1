"""Selecting references by transduction, over a direct loop. Claim: at least 10 times faster.

1,000 images of 32 px, 50 candidates, a bank of 10,000 residuals. The direct loop forms residuals to
each candidate and takes their distances to the bank, as the definition says (through a matrix
product, as torch.cdist does by itself).

    python benchmarks/transduction.py
"""

import torch
from paired_timing import compare, write
from torch import Tensor

from killick.core.transduction import nearest_residuals


def direct(x: Tensor, candidates: Tensor, bank: Tensor) -> Tensor:
    """The definition, one candidate at a time."""
    return torch.stack([torch.cdist(x - r, bank).amin(1) for r in candidates], dim=1)


def main() -> None:
    """Measure and write."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    n, k, m, features = 1000, 50, 10_000, 3 * 32 * 32
    # Like images: neighboring numbers alike, so that distances differ.
    x, candidates, a, b = (
        torch.randn(rows, 3, 8, 8, generator=generator).repeat_interleave(4, 2)
        .repeat_interleave(4, 3).flatten(1).to(device)
        for rows in (n, k, m, m)
    )  # fmt: skip
    bank = a - b
    assert bank.shape == (m, features)
    found, expected = nearest_residuals(x, candidates, bank), direct(x, candidates, bank)
    same = (found.argmin(1) == expected.argmin(1)).float().mean().item()
    error = ((found - expected).abs() / expected).max().item()
    print(f"same choice for {same:.1%} of the images, largest relative difference {error:.1e}")
    rows = compare(
        "transduction",
        f"{n} images, {k} candidates, bank {m}",
        {
            "two products": lambda: nearest_residuals(x, candidates, bank),
            "direct loop": lambda: direct(x, candidates, bank),
        },
        rounds=20 if device == "cuda" else 7,
        items=n,
        device=device,
    )
    write("transduction-h200" if device == "cuda" else "transduction-cpu", rows)


if __name__ == "__main__":
    main()
