"""Numbers and names as they stand in sentences."""

from collections.abc import Mapping, Sequence

_MOST_TOLD = 5  # of a kind in one sentence


def percent(share: float, digits: int = 1) -> str:
    """A share in percent.

    Example:
        >>> percent(0.8312)
        '83.1 %'
    """
    return f"{signless(100 * share, digits)} %"


def points(difference: float, digits: int = 1) -> str:
    """A difference of shares, in points of percent, with its sign.

    Example:
        >>> points(-0.0312)
        '−3.1 points'
    """
    return f"{signed(100 * difference, digits)} points"


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


def enumerate_words(words: Sequence[str]) -> str:
    """Words in a sentence.

    Example:
        >>> enumerate_words(["fog", "snow", "frost"])
        'fog, snow and frost'
    """
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def tell_some(shares: Mapping[str, float], digits: int = 0) -> str:
    """Shares with whose they are; of many the least and the most.

    Example:
        >>> tell_some({"plain": 0.2, "masked": 0.412})
        '20 % (plain) and 41 % (masked)'
        >>> tell_some({name: number / 10 for number, name in enumerate("abcdef")})
        'from 0 % (a) to 50 % (f)'
    """
    if len(shares) <= _MOST_TOLD:
        return enumerate_words([f"{percent(v, digits)} ({name})" for name, v in shares.items()])
    low, high = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
    return (
        f"from {percent(shares[low], digits)} ({low}) to {percent(shares[high], digits)} ({high})"
    )


def count_words(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun.

    Example:
        >>> count_words(1, "seed"), count_words(1200, "image")
        ('1 seed', '1,200 images')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def spell_corruption(name: str) -> str:
    """The name of a corruption for people.

    Example:
        >>> spell_corruption("jpeg_compression"), spell_corruption("gaussian_noise")
        ('JPEG compression', 'Gaussian noise')
    """
    return name.replace("_", " ").replace("jpeg", "JPEG").replace("gaussian", "Gaussian")


def capitalise(sentence: str) -> str:
    """A sentence that begins with a capital, its other letters as they were."""
    return sentence[:1].upper() + sentence[1:]
