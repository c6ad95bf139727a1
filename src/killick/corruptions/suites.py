"""Suites: named lists of corruptions. Means are over suites; a new corruption changes no published one."""

from killick.errors import OptionError, check_option

TABLES = ("cifar", "tiny", "imagenet")
SEVERITIES = (1, 2, 3, 4, 5)

_C15 = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur"),
    *("motion_blur", "zoom_blur", "snow", "frost", "fog", "brightness", "contrast"),
    *("elastic_transform", "pixelate", "jpeg_compression"),
)
_CBAR = (
    *("blue_noise_sample", "checkerboard_cutout", "inverse_sparkles", "sparkles"),
    "brownish_noise",
)
_CBAR_CIFAR = (
    *("pinch_and_twirl", "ripple", "circular_motion_blur", "lines"),
    "transverse_chromatic_abberation",
)
_CBAR_IMAGENET = (
    *("caustic_refraction", "perlin_noise", "plasma_noise", "cocentric_sine_waves"),
    "single_frequency_greyscale",
)
SUITES: dict[str, tuple[str, ...]] = {
    # ImageNet-C (Hendrycks and Dietterich 2019): all 19, and the 15 of its published mean.
    "c": (*_C15, "speckle_noise", "gaussian_blur", "spatter", "saturate"),
    "c15": _C15,
    # C-bar (Mintun et al. 2021): ten for each size, five of them in both lists.
    "cbar-cifar": (*_CBAR, *_CBAR_CIFAR),
    "cbar-imagenet": (*_CBAR, *_CBAR_IMAGENET),
}
# Every corruption of a suite, once.
PUBLISHED = tuple(dict.fromkeys(name for suite in SUITES.values() for name in suite))


def list_corruptions(kind: str, table: str) -> tuple[str, ...]:
    """The corruptions of "c", "c15" or "cbar", the last for images of `table`'s size.

    C-bar has no list for 64 px; CIFAR's is taken, whose constants are shares of the side.
    """
    check_option("the kind of corruptions", kind, ["c", "c15", "cbar"])
    check_option("table", table, TABLES)
    if kind == "cbar":
        return SUITES["cbar-imagenet" if table == "imagenet" else "cbar-cifar"]
    return SUITES[kind]


def check_severity(severity: int) -> None:
    """Refuse what is not one of the five severities."""
    if type(severity) is not int or severity not in SEVERITIES:
        raise OptionError(f"expected a severity from 1 to 5, found {severity!r}.")
