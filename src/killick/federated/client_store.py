"""What a client keeps between rounds: its own weights, in a folder of its own.

The weights of the last two rounds are kept. If the server is killed in a round and repeats it, the
client starts again from its weights before that round.
"""

from pathlib import Path

import safetensors.torch

from killick.federated.method import State
from killick.runtime.atomic_files import write_atomic
from killick.storage.weights import read_weights


class ClientStore:
    """The kept weights of one client, by round."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _rounds(self) -> dict[int, Path]:
        """The files by round, ascending."""
        found = {int(path.stem[6:]): path for path in self._folder.glob("round-*.safetensors")}
        return dict(sorted(found.items()))

    def load(self, before: int) -> State | None:
        """The weights that were kept last before a round; None at first."""
        found = [path for number, path in self._rounds().items() if number < before]
        return read_weights(found[-1]) if found else None

    def save(self, round_: int, weights: State) -> None:
        """Keep the weights of a round, and those of the last one before it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"round-{round_:06}.safetensors"
        write_atomic(path, safetensors.torch.save({n: w.contiguous() for n, w in weights.items()}))
        rounds = self._rounds()
        before = [number for number in rounds if number < round_]
        for number, other in rounds.items():
            if number > round_ or number in before[:-1]:
                other.unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget everything, before a new federation begins."""
        for path in self._rounds().values():
            path.unlink(missing_ok=True)
