"""The one table: what each corruption does at severity 1 to 5, for CIFAR and for ImageNet.

A row holds, for each severity, the arguments of the function of that name, in its order. The 19
common ones (Hendrycks and Dietterich 2019) have other constants at 32 px (CIFAR-10-C) than at
224 px (ImageNet-C). C-bar (Mintun et al. 2021) is two lists of ten, of which five names are in
both. The published sets used these numbers at these sizes; at other sizes they are used as they
are.
"""

from dataclasses import dataclass

Arguments = tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """The arguments of a corruption at each of five severities; None where it has no such list."""

    cifar: tuple[Arguments, ...] | None
    imagenet: tuple[Arguments, ...] | None


def _each(*values: float) -> tuple[Arguments, ...]:
    """One number for each severity."""
    return tuple((value,) for value in values)


COMMON = {
    # share of full scale
    "gaussian_noise": Row(_each(0.04, 0.06, 0.08, 0.09, 0.10), _each(0.08, 0.12, 0.18, 0.26, 0.38)),
    # photons at full scale
    "shot_noise": Row(_each(500, 250, 100, 75, 50), _each(60, 25, 12, 5, 3)),
    # share of the values
    "impulse_noise": Row(_each(0.01, 0.02, 0.03, 0.05, 0.07), _each(0.03, 0.06, 0.09, 0.17, 0.27)),
    # radius of the disc, sigma of its smoothing
    "defocus_blur": Row(
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    ),
    # sigma, reach of the shuffle, passes
    "glass_blur": Row(
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    ),
    # radius, sigma
    "motion_blur": Row(
        ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    ),
    # step between the factors, how many of them, from 1
    "zoom_blur": Row(
        ((0.01, 7), (0.01, 12), (0.01, 16), (0.01, 21), (0.01, 26)),
        ((0.01, 12), (0.01, 16), (0.02, 11), (0.02, 13), (0.03, 11)),
    ),
    # mean, std, zoom, threshold, radius and sigma of the streaks, share of the image
    "snow": Row(
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    ),
    # weight of the image, weight of the frost, scale of the texture
    "frost": Row(
        ((1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)),
        ((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
    ),
    # amount, decay of the wobble
    "fog": Row(
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    ),
    # added to the value of HSV
    "brightness": Row(_each(0.05, 0.1, 0.15, 0.2, 0.3), _each(0.1, 0.2, 0.3, 0.4, 0.5)),
    # what is left of the distance to the mean
    "contrast": Row(_each(0.75, 0.5, 0.4, 0.3, 0.15), _each(0.4, 0.3, 0.2, 0.1, 0.05)),
    # displacement, its smoothing, corner jitter: shares of `side`; side: share of the image's
    "elastic_transform": Row(
        ((0, 0, 0.08, 1), (0.05, 0.2, 0.07, 1), (0.08, 0.06, 0.06, 1), (0.1, 0.04, 0.05, 1))
        + ((0.1, 0.03, 0.03, 1),),
        tuple(
            (*shares, 244 / 224)  # a slip of the original, kept
            for shares in (
                (2, 0.7, 0.1),
                (2, 0.08, 0.2),
                (0.05, 0.01, 0.02),
                (0.07, 0.01, 0.02),
                (0.12, 0.01, 0.02),
            )
        ),
    ),
    # scale
    "pixelate": Row(_each(0.95, 0.9, 0.85, 0.75, 0.65), _each(0.6, 0.5, 0.4, 0.3, 0.25)),
    # quality
    "jpeg_compression": Row(_each(80, 65, 58, 50, 40), _each(25, 18, 15, 10, 7)),
    # share of full scale, times the pixel
    "speckle_noise": Row(_each(0.06, 0.1, 0.12, 0.16, 0.2), _each(0.15, 0.2, 0.35, 0.45, 0.6)),
    # sigma
    "gaussian_blur": Row(_each(0.4, 0.6, 0.7, 0.8, 1), _each(1, 2, 3, 4, 6)),
    # mean, std, sigma, threshold, strength, mud instead of water
    "spatter": Row(
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
        (
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ),
    ),
    # the saturation of HSV times the first plus the second
    "saturate": Row(
        ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    ),
}

# The last four of the common ones are not among the fifteen of the benchmark's own mean.
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")

CBAR = {
    "blue_noise_sample": Row(_each(0.7, 1.4, 2.1, 3.5, 4.2), _each(0.8, 1.6, 2.4, 4, 5.6)),
    "checkerboard_cutout": Row(_each(1, 2, 3, 4, 5), _each(2, 3, 4, 5, 6)),
    "inverse_sparkles": Row(_each(1, 1.5, 2.5, 4.5, 5), _each(1, 2, 4, 9, 10)),
    "sparkles": Row(_each(0.7, 3.5, 5.6, 6.3, 7), _each(1, 2, 3, 5, 6)),
    "brownish_noise": Row(_each(2.5, 4, 5.5, 6.5, 7), _each(1, 2, 3, 4, 5)),
    "pinch_and_twirl": Row(_each(5.5, 6, 6.5, 8.5, 10), None),
    "ripple": Row(_each(5.5, 6, 6.5, 7.5, 8), None),
    "circular_motion_blur": Row(_each(2.8, 3.6, 4.4, 5.2, 6), None),
    "lines": Row(_each(0.5, 1, 1.5, 2, 2.5), None),
    "transverse_chromatic_abberation": Row(_each(1, 2, 5, 9, 10), None),
    "caustic_refraction": Row(None, _each(2.35, 3.2, 4.9, 6.6, 9.15)),
    "perlin_noise": Row(None, _each(4.6, 5.2, 5.8, 7.6, 8.8)),
    "plasma_noise": Row(None, _each(4.75, 7, 8.5, 9.25, 10)),
    "cocentric_sine_waves": Row(None, _each(3, 5, 8, 9, 10)),
    "single_frequency_greyscale": Row(None, _each(1, 1.5, 2, 4.5, 5)),
}
