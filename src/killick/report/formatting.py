"""Numbers, names and files as they are shown."""

import base64


def signed(value: float, digits: int) -> str:
    """A number with its sign; what rounds to zero has none.

    Example:
        >>> signed(0.25, 1), signed(-3.0, 1), signed(-0.01, 1)
        ('+0.2', '−3.0', '0.0')
    """
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    return f"{'+' if value > 0 else '−'}{text}"


def signless(value: float, digits: int) -> str:
    """A number, with a sign only if it is negative.

    Example:
        >>> signless(-1.25, 1), signless(1.0, 2)
        ('−1.2', '1.00')
    """
    return signed(value, digits).removeprefix("+")


def count_words(count: int, one: str) -> str:
    """A count with its noun.

    Example:
        >>> count_words(1, "seed"), count_words(1200, "image")
        ('1 seed', '1,200 images')
    """
    return f"{count:,} {one if count == 1 else one + 's'}"


def spell_corruption(name: str) -> str:
    """The name of a corruption for figures.

    Example:
        >>> spell_corruption("jpeg_compression"), spell_corruption("gaussian_noise")
        ('JPEG compression', 'Gaussian noise')
    """
    return name.replace("_", " ").replace("jpeg", "JPEG").replace("gaussian", "Gaussian")


def data_uri(kind: str, content: bytes) -> str:
    """The address of a file, with the file in it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def is_png(encoded: bytes) -> bool:
    """Whether an image is a PNG; small ones are, others are JPEGs."""
    return encoded.startswith(b"\x89PNG")


def image_uri(encoded: bytes) -> str:
    """The address of a PNG or JPEG image, with the image in it."""
    return data_uri("image/png" if is_png(encoded) else "image/jpeg", encoded)
