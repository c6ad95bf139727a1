"""What is written when all rounds are done: the generic model, its evaluation and the report."""

from dataclasses import asdict, replace
from pathlib import Path

from killick.evaluation.evaluator import evaluate
from killick.federated.federated_data import FederatedData
from killick.federated.federation_report import write_federation_report
from killick.federated.server_state import ServerState
from killick.storage.saving import save


def finish(
    data: FederatedData, state: ServerState, command: str | None = None, *, dealt: bool = True
) -> Path:
    """Save and evaluate the generic model in `generic/`, and write `report.html`.

    A method without a generic model leaves the first weights there. `dealt`: whether the clients have
    the plan's images, and none of their own.
    """
    plan, folder = data.plan, data.plan.output / "generic"
    recipe = replace(
        plan.recipe, data=replace(plan.recipe.data, validation=0.0)
    )  # none was cut off
    facts = {
        "network": recipe.network.name,
        "data": recipe.data.name,
        "protocol": recipe.protocol.name,
        "name": f"generic, {plan.federation.method}",
        "seed": recipe.seed,
    }
    provenance = {
        "recipe": asdict(recipe),
        "federation": asdict(plan.federation),
        "facts": facts,
    }
    model = data.ready_generic(state.weights)
    save(
        model,
        folder / "model",
        class_names=data.parts.train.class_names,
        provenance=provenance,
    )
    evaluate(str(folder), suites=("clean",), device=str(data.device), folder=folder, quiet=True)
    counts = data.class_counts() if dealt else None
    return write_federation_report(plan, state.records, counts, command)
