"""Settings of a federation; imports no torch, for the command line."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError
from killick.registry import Registry
from killick.settings import read_options, setting, split_pairs
from killick.training.recipe import Recipe
from killick.training.recipe_files import make_recipe

if TYPE_CHECKING:
    from killick.federated.method import Method
    from killick.federated.partitions import Partition


@dataclass(frozen=True)
class Federation:
    """Clients, what they have and how they train."""

    method: str = setting("spectral", "NAME[:key=value,...]; see killick list methods")
    partition: str = setting("dirichlet", "dirichlet[:p=1,alpha=0.5], iid or long-tail[:ratio=0.1]")
    clients: int = setting(8, "how many", least=1)
    rounds: int = setting(60, "of training and aggregation", least=1)
    local_epochs: int = setting(1, "of each model in a round", least=1)
    fraction: float = setting(1.0, "of the clients that train in a round", least=0, most=1)
    evaluate_every: int = setting(2, "rounds between evaluations", least=1)
    bandwidth: float = setting(1.0, "MB/s of each client's link, for the clock", above=0)
    timeout: float = setting(600.0, "seconds to wait for answers, with flower", above=0)

    def __post_init__(self) -> None:
        if self.participants == 0:
            raise OptionError(
                f"a fraction of {self.fraction:g} selects none of {self.clients} clients. Use at"
                f" least {1 / self.clients:.2g}."
            )

    @property
    def participants(self) -> int:
        """How many clients train in a round."""
        return round(self.fraction * self.clients)

    @property
    def method_settings(self) -> "Method":
        """The method, made from its text."""
        from killick.federated.method import METHODS

        made: Method = _read_entry(METHODS, self.method)
        return made

    @property
    def partition_settings(self) -> "Partition":
        """The partition, made from its text."""
        from killick.federated.partitions import PARTITIONS

        made: Partition = _read_entry(PARTITIONS, self.partition)
        return made


@dataclass(frozen=True)
class FederationPlan:
    """All that decides the numbers of a federation, and where it writes."""

    recipe: Recipe
    federation: Federation
    output: Path
    device: str = "auto"
    threads: int | None = None  # of a client on a CPU
    class_names: tuple[str, ...] = ()  # of the server, for clients with data of their own

    def to_json(self) -> str:
        """As a text that other processes read."""
        values = {
            "recipe": asdict(self.recipe),
            "federation": asdict(self.federation),
            "output": str(self.output),
            "device": self.device,
            "threads": self.threads,
            "class_names": self.class_names,
        }
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str) -> "FederationPlan":
        """What `to_json` wrote."""
        values = json.loads(text)
        return cls(
            make_recipe(values["recipe"]),
            read_options(Federation, values["federation"], "the federation"),
            Path(values["output"]),
            values["device"],
            values["threads"],
            tuple(values["class_names"]),
        )


def _read_entry(registry: Registry[Any], text: str) -> Any:
    """An instance of a registered dataclass from NAME or NAME:key=value,..."""
    name, _, rest = text.partition(":")
    values = dict(split_pairs(rest)) if rest else {}
    return read_options(registry.find(name), values, f"the {registry.title} {name}")
