"""What `killick.data.keyed_random` should draw, one number at a time with Python's own whole numbers."""

GOLDEN = 0x9E3779B97F4A7C15
WORD = 1 << 64


def splitmix(state: int, count: int) -> list[int]:
    """The first outputs of the generator SplitMix64, started at `state`."""
    outputs = []
    for _ in range(count):
        state = (state + GOLDEN) % WORD
        outputs.append(finalise(state))
    return outputs


def finalise(state: int) -> int:
    """How SplitMix64 makes an output of its state."""
    z = state % WORD
    z = (z ^ (z // 2**30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z // 2**27)) * 0x94D049BB133111EB % WORD
    return z ^ (z // 2**31)


def draw(key: int, stream: int, place: int = 0) -> int:
    """The upper 33 bits of the hash of a key, a stream and a place on the count axis."""
    start = (key + GOLDEN * (1000 * stream + 1) + place) % WORD
    return finalise(finalise(start)) // 2**31


def uniform(key: int, stream: int, place: int = 0) -> float:
    """In [0, 1), in steps of 2^-24."""
    return (draw(key, stream, place) % 2**24) / 2**24
