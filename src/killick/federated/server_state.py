"""The server's state after each round, in one file, so that a killed federation goes on from it."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import safetensors
import safetensors.torch

from killick.errors import CheckpointError, OptionError, one_line
from killick.federated.federation_settings import FederationPlan
from killick.federated.method import State
from killick.runtime.atomic_files import write_atomic

FILE = "server-state.safetensors"
VERSION = 3  # of the records
Record = dict[str, Any]


@dataclass
class ServerState:
    """The generic model after some rounds, and what was measured in each."""

    weights: State
    records: list[Record] = field(default_factory=list)  # one for each round

    def save(self, plan: FederationPlan) -> None:
        """Write it, whole or not at all."""
        about = {"plan": _describe(plan), "records": json.dumps(self.records)}
        weights = {name: each.contiguous() for name, each in self.weights.items()}
        write_atomic(plan.output / FILE, safetensors.torch.save(weights, metadata=about))


def load_state(plan: FederationPlan) -> ServerState | None:
    """The state in the folder of a plan; None if it holds none.

    Raises:
        OptionError: If it is the state of a federation with other settings.
    """
    path = plan.output / FILE
    if not path.exists():
        return None
    try:
        with safetensors.safe_open(path, "pt") as file:
            about = file.metadata()
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        before, records = about["plan"], json.loads(about["records"])
    except Exception as problem:  # whatever a damaged file makes its readers raise
        raise CheckpointError(f"cannot read {path}: {one_line(problem)}.") from None
    if before != _describe(plan):
        raise OptionError(
            f"{plan.output} holds a federation with other settings. Choose another folder: --output."
        )
    return ServerState(weights, records)


def _describe(plan: FederationPlan) -> str:
    """What decides the numbers, as text."""
    federation = asdict(plan.federation)
    del federation["bandwidth"], federation["timeout"]  # of the clock, and of waiting
    values = {"recipe": asdict(plan.recipe), "federation": federation, "version": VERSION}
    return json.dumps(values, sort_keys=True)
