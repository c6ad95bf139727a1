"""What is written when all rounds are done: a model, its evaluation and the report."""

from dataclasses import asdict, replace
from pathlib import Path

from killick.evaluation.evaluator import evaluate
from killick.federated.federated_data import FederatedData
from killick.federated.federation_report import write_federation_report, write_rounds
from killick.federated.server_state import ServerState
from killick.results.run_folder import read_run
from killick.storage.loading import load
from killick.storage.saving import save
from killick.training.initial_weights import Model


def finish(
    data: FederatedData, state: ServerState, command: str | None = None, *, dealt: bool = True
) -> Path:
    """Save and evaluate the generic model in `generic/`, and write `report.html`.

    A generic model that is of no use by itself is left out; the report then has client 0's model on
    all test images, if that is here, and else only the rounds are written. `dealt`: whether the
    clients have the plan's images, and none of their own.
    """
    plan, folder = data.plan, data.plan.output / "generic"
    if plan.federation.method_settings.evaluates_generic:
        _evaluate(data, data.ready_generic(state.weights), folder, "generic")
    else:
        folder = plan.output / "clients" / "0000"
        if not (folder / "model").exists():
            return write_rounds(plan, state.records)
        _evaluate(data, load(folder / "model"), folder, "client 0")
    counts = data.class_counts() if dealt else None
    return write_federation_report(plan, state.records, read_run(folder), counts, command)


def _evaluate(data: FederatedData, model: Model, folder: Path, name: str) -> None:
    """Save a model in a run folder, and evaluate it on all test images."""
    plan = data.plan
    recipe = replace(
        plan.recipe, data=replace(plan.recipe.data, validation=0.0)
    )  # none was cut off
    facts = {
        "network": recipe.network.name,
        "data": recipe.data.name,
        "protocol": recipe.protocol.name,
        "name": f"{name}, {plan.federation.method}",
        "seed": recipe.seed,
    }
    provenance = {
        "recipe": asdict(recipe),
        "federation": asdict(plan.federation),
        "facts": facts,
    }
    names = data.parts.train.class_names
    save(model, folder / "model", class_names=names, provenance=provenance)
    evaluate(str(folder), suites=("clean",), device=str(data.device), folder=folder, quiet=True)
