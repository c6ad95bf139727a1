"""What fog, snow, spatter and frost should be: one image, one pixel at a time, in float64.

Images are arrays `(height, width, 3)` of levels 0 to 255; layers are `(height, width)`.
"""

import heapq
import math
from collections.abc import Iterator

import numpy as np

Layer = np.ndarray


def at_edge(layer: Layer, y: int, x: int) -> float:
    """A value of the layer, which repeats its edges outwards."""
    height, width = layer.shape
    return float(layer[min(max(y, 0), height - 1), min(max(x, 0), width - 1)])


def in_mirror(layer: Layer, y: int, x: int) -> float:
    """A value of the layer, or of its mirror image one pixel outside of it."""
    places = []
    for place, size in ((y, layer.shape[0]), (x, layer.shape[1])):
        if place < 0:
            place = min(1, size - 1)
        elif place >= size:
            place = max(size - 2, 0)
        places.append(place)
    return float(layer[places[0], places[1]])


def landscape(noise: list[float], size: int, decay: float) -> Layer:
    """Diamond-square, closed in both directions, from numbers in -1 … 1; stretched to 0 … 1."""
    draws = iter(noise)
    heights = {(0, 0): 0.0}
    wobble, step = 100.0, size
    while step > 1:
        half = step // 2
        # The middles of squares, of level sides, of upright sides; and which four each is between.
        kinds = (
            ((half, half), ((-half, -half), (-half, half), (half, -half), (half, half))),
            ((0, half), ((-half, 0), (half, 0), (0, -half), (0, half))),
            ((half, 0), ((-half, 0), (half, 0), (0, -half), (0, half))),
        )
        for (down, right), around in kinds:
            for y in range(down, size, step):
                for x in range(right, size, step):
                    four = [heights[(y + dy) % size, (x + dx) % size] for dy, dx in around]
                    heights[y, x] = sum(four) / 4 + wobble * (wobble * next(draws))
        step, wobble = half, wobble / decay
    layer = np.array([[heights[y, x] for x in range(size)] for y in range(size)])
    layer -= layer.min()
    return layer / layer.max()


def fog(image: np.ndarray, land: Layer, amount: float) -> np.ndarray:
    """Levels under clouds, not yet truncated."""
    brightest = image.max() / 255
    foggy = np.empty(image.shape)
    for y, x, channel in np.ndindex(*image.shape):
        value = image[y, x, channel] / 255 + amount * land[y, x]
        foggy[y, x, channel] = 255 * min(value * brightest / (brightest + amount), 1)
    return foggy


def zoom(layer: Layer, factor: float, height: int, width: int) -> Layer:
    """The layer enlarged linearly, corner on corner, and the middle of it."""
    tall, wide = round(layer.shape[0] * factor), round(layer.shape[1] * factor)
    top, left = (tall - height) // 2, (wide - width) // 2
    zoomed = np.empty((height, width))
    for y, x in np.ndindex(height, width):
        place = (y + top) * (layer.shape[0] - 1) / max(tall - 1, 1)
        across = (x + left) * (layer.shape[1] - 1) / max(wide - 1, 1)
        low, near = math.floor(place), math.floor(across)
        zoomed[y, x] = sum(
            (1 - abs(place - row)) * (1 - abs(across - column)) * at_edge(layer, row, column)
            for row in (low, low + 1)
            for column in (near, near + 1)
        )
    return zoomed


def flakes(
    noise: Layer, mean: float, std: float, factor: float, threshold: float, size: tuple[int, int]
) -> Layer:
    """Snow before it falls: whole levels."""
    layer = zoom(mean + std * noise, factor, *size)
    for place, value in np.ndenumerate(layer):
        layer[place] = 0 if value < threshold else math.floor(min(max(value, 0), 1) * 255)
    return layer


def smear(layer: Layer, angle: float, radius: int, sigma: float) -> Layer:
    """The layer blurred along a line, in whole levels."""
    weights = [math.exp(-(step**2) / (2 * sigma**2)) for step in range(2 * radius + 1)]
    turn = math.radians(angle)
    smeared = np.empty(layer.shape)
    for y, x in np.ndindex(*layer.shape):
        total = 0.0
        for step, weight in enumerate(weights):
            down = math.ceil(step * math.sin(turn) - 0.5)
            right = math.ceil(step * math.cos(turn) - 0.5)
            total += weight * at_edge(layer, y + down, x + right)
        smeared[y, x] = math.floor(total / sum(weights) + 0.5)
    return smeared


def snow(image: np.ndarray, streaks: Layer, mix: float) -> np.ndarray:
    """Levels in the snow, not yet truncated."""
    height, width, _ = image.shape
    snowy = np.empty(image.shape)
    for y, x in np.ndindex(height, width):
        red, green, blue = image[y, x] / 255
        grey = 0.299 * red + 0.587 * green + 0.114 * blue
        fallen = (streaks[y, x] + streaks[height - 1 - y, width - 1 - x]) / 255
        for channel, value in enumerate((red, green, blue)):
            blended = mix * value + (1 - mix) * max(value, grey * 1.5 + 0.5)
            snowy[y, x, channel] = 255 * min(blended + fallen, 1)
    return snowy


def smooth(layer: Layer, sigma: float) -> Layer:
    """The layer after a Gaussian filter up to four sigmas away."""
    reach = int(4 * sigma + 0.5)
    weights = {step: math.exp(-(step**2) / (2 * sigma**2)) for step in range(-reach, reach + 1)}
    total = sum(weights.values())
    for down, right in ((1, 0), (0, 1)):
        smoothed = np.empty(layer.shape)
        for y, x in np.ndindex(*layer.shape):
            values = (at_edge(layer, y + k * down, x + k * right) * w for k, w in weights.items())
            smoothed[y, x] = sum(values) / total
        layer = smoothed
    return layer


def canny(layer: Layer, low: int, high: int) -> np.ndarray:
    """Whether each pixel is on an edge."""
    height, width = layer.shape
    across, down = np.zeros((height, width)), np.zeros((height, width))
    for y, x in np.ndindex(height, width):
        for k, weight in ((-1, 1), (0, 2), (1, 1)):
            across[y, x] += weight * (at_edge(layer, y + k, x + 1) - at_edge(layer, y + k, x - 1))
            down[y, x] += weight * (at_edge(layer, y + 1, x + k) - at_edge(layer, y - 1, x + k))
    slope = np.abs(across) + np.abs(down)

    def steepness(y: int, x: int) -> float:
        return slope[y, x] if 0 <= y < height and 0 <= x < width else 0.0

    crests = set()
    for y, x in np.ndindex(height, width):
        wide, tall = abs(across[y, x]), abs(down[y, x])
        if tall < wide * 13573 / 32768:  # OpenCV's tangent of 22.5 degrees
            before, after, strict = (0, -1), (0, 1), False
        elif tall > wide * (13573 / 32768 + 2):  # and of 67.5
            before, after, strict = (-1, 0), (1, 0), False
        else:
            side = 1 if across[y, x] * down[y, x] >= 0 else -1
            before, after, strict = (-1, -side), (1, side), True
        first = steepness(y + before[0], x + before[1])
        second = steepness(y + after[0], x + after[1]) - (0 if strict else 0.5)
        if slope[y, x] > max(low, first, second):
            crests.add((y, x))

    edges = np.zeros((height, width), dtype=bool)
    waiting = [place for place in crests if slope[place] > high]
    while waiting:
        y, x = waiting.pop()
        if not edges[y, x]:
            edges[y, x] = True
            nearby = ((y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1))
            waiting += [place for place in nearby if place in crests]
    return edges


def moves() -> Iterator[tuple[int, int, float]]:
    """A king's and a knight's, and how long OpenCV takes them for."""
    for y in range(-2, 3):
        for x in range(-2, 3):
            lengths = {(0, 1): 1.0, (1, 1): 1.4, (1, 2): 2.1969}
            kind = tuple(sorted((abs(y), abs(x))))
            if kind in lengths:
                yield y, x, lengths[kind]


def distances(edges: np.ndarray, limit: float) -> Layer:
    """How far each pixel is from an edge, by Dijkstra's method."""
    found = np.full(edges.shape, float(limit))
    queue = [(0.0, y, x) for y, x in np.argwhere(edges).tolist()]
    for _, y, x in queue:
        found[y, x] = 0
    while queue:
        far, y, x = heapq.heappop(queue)
        for down, right, length in moves():
            row, column = y + down, x + right
            inside = 0 <= row < edges.shape[0] and 0 <= column < edges.shape[1]
            if inside and far + length < found[row, column] - 1e-9:
                found[row, column] = far + length
                heapq.heappush(queue, (far + length, row, column))
    return found


def filtered(layer: Layer, kernel: list[list[int]]) -> Layer:
    """Weighted sums over each pixel and its eight neighbours."""
    result = np.zeros(layer.shape)
    for y, x in np.ndindex(*layer.shape):
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):
                result[y, x] += kernel[dy + 1][dx + 1] * in_mirror(layer, y + dy, x + dx)
    return result


def equalized(layer: Layer) -> Layer:
    """Levels spread by how many pixels are above the lowest level and not above them."""
    levels = layer.ravel().tolist()
    above = [level for level in levels if level > min(levels)]
    if not above:
        return layer
    spread = {}
    for level in set(levels):
        share = np.float32(255) / np.float32(len(above))  # ties are OpenCV's, in single precision
        spread[level] = round(np.float32(sum(other <= level for other in above)) * share)
    return np.array([spread[level] for level in levels], dtype=float).reshape(layer.shape)


def light(drops: Layer) -> Layer:
    """How bright each pixel of the drops is, 0 to 255."""
    ones = [[1, 1, 1]] * 3
    heights = filtered(distances(canny(drops, 50, 150), 20), ones) / 9
    heights = equalized(np.floor(heights + 1e-6))
    lit = np.clip(filtered(heights, [[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]), 0, 255)
    return np.floor(filtered(lit, ones) / 9 + 0.5)


def water(image: np.ndarray, liquid: Layer, threshold: float, strength: float) -> np.ndarray:
    """Levels behind drops of water, not yet truncated."""
    drops = np.floor(np.where(liquid < threshold, 0, liquid) * 255) % 256
    thick = drops * light(drops)
    colour = np.array([175, 238, 238])
    return np.minimum(image + thick[..., None] / max(thick.max(), 1) * strength * colour, 255)


def mud(image: np.ndarray, liquid: Layer, threshold: float, sigma: float) -> np.ndarray:
    """Levels behind splashes of mud, not yet truncated."""
    covered = smooth(np.where(liquid > threshold, 1.0, 0.0), sigma)[..., None]
    covered[covered < 0.8] = 0
    return image * (1 - covered) + covered * np.array([63, 42, 20])


def resize(texture: np.ndarray, scale: float, height: int, width: int) -> np.ndarray:
    """A texture, sampled at the middles of its new pixels."""
    resized = np.empty((height, width, 3))
    for y, x, channel in np.ndindex(height, width, 3):
        place = min(max((y + 0.5) / scale - 0.5, 0), texture.shape[0] - 1)
        across = min(max((x + 0.5) / scale - 0.5, 0), texture.shape[1] - 1)
        low, near = math.floor(place), math.floor(across)
        resized[y, x, channel] = sum(
            (1 - abs(place - row)) * (1 - abs(across - column))
            * at_edge(texture[..., channel], row, column)
            for row in (low, low + 1)
            for column in (near, near + 1)
        )  # fmt: skip
    return np.round(resized)
