"""Beyond the paper: federated training, its methods, and what anchoring brings to clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from killick.settings import setting
from killick.studies.findings import (
    Findings,
    Results,
    Values,
    compare_values,
    format_mean,
    make_table,
)
from killick.studies.plots import Plot, draw_figure
from killick.studies.study import STUDIES, Size, Study, compare_protocols

if TYPE_CHECKING:
    from killick.experiments.jobs import Job

PERSONAL, GENERIC, WORST = "personal_top1", "generic_top1", "worst_client_top1"
CORRUPTED, ECE, CORRUPTED_ECE = "corrupted_top1", "smooth_ece", "corrupted_smooth_ece"
SAVING, CURVE = "clock_saving", "personal_top1_by_round"
REFERENCES = {"own": "its own", "others": "another client's", "mean": "mean of its own"}
_COLUMNS = {
    PERSONAL: ("personalized, %", 100, 1),
    WORST: ("worst client, %", 100, 1),
    GENERIC: ("generic, %", 100, 1),
    CORRUPTED: ("personalized, corrupted, %", 100, 1),
    ECE: ("smooth ECE", 1, 3),
    CORRUPTED_ECE: ("smooth ECE, corrupted", 1, 3),
    SAVING: ("wait-free saves, %", 100, 1),
}


@dataclass(frozen=True)
class Options:
    """Clients, their data, and the methods."""

    protocols: list[str] = setting(["standard", "masked-label"], "arms, also trained centrally")
    methods: list[str] = setting(
        ["spectral", "ditto", "fedavg", "fedavg-finetune", "local"],
        "NAME or NAME:key=value; see killick list methods. The first is compared with the others",
    )
    partitions: list[str] = setting(["dirichlet:alpha=0.5"], "dirichlet[:alpha=0.5], iid, ...")
    clients: int = setting(8, "how many", least=2)
    rounds: int = setting(20, "of each federation", least=1)
    local_epochs: int = setting(1, "of each model in a round", least=1)
    federated_corruptions: list[str] = setting(
        ["gaussian_noise", "motion_blur", "fog", "pixelate"], "that clients' test images are under"
    )
    severity: int = setting(3, "of these corruptions", least=1, most=5)


def check(options: Options, jobs: "Sequence[Job]") -> None:
    """Refuse methods, and partitions of the first job's data, before anything is trained."""
    from killick.federated.federated_data import FederatedData
    from killick.federated.federation_settings import Federation, FederationPlan

    for method in options.methods:
        Federation(method).method_settings  # noqa: B018
    for partition in options.partitions:
        federation = Federation(options.methods[0], partition, options.clients)
        FederatedData(FederationPlan(jobs[0].phases[0].recipe, federation, Path())).check()


def find(results: Results) -> Findings:
    """Methods side by side by partition and protocol, and what references do."""
    options = results.plan.options
    rows, headline, references = [], [], []
    for partition in options.partitions:
        for protocol in results.levels("protocol"):
            known = {"protocol": protocol, "partition": partition}

            def values(metric: str, method: str, known: dict[str, str] = known) -> Values:
                return results.by_seed(metric, method=method, **known)

            first = options.methods[0]
            for method in options.methods:
                gap = compare_values(values(PERSONAL, first), values(PERSONAL, method))
                row = {"partition, protocol, method": f"{partition}, {protocol}, {method}"}
                for metric, (heading, factor, digits) in _COLUMNS.items():
                    row[heading] = format_mean(values(metric, method), factor, digits)
                rows.append(row | {f"{first} − method, personalized": gap})
                if method != first:
                    headline.append(f"{protocol}, {partition}: {gap} points over {method}")
                texts = {
                    title: format_mean(values(f"generic_{kind}_reference", method))
                    for kind, title in REFERENCES.items()
                }
                if set(texts.values()) != {"–"}:
                    name = f"{partition}, {protocol}, {method}"
                    references.append({"partition, protocol, method": name, **texts})
    central = [
        {"protocol": protocol, **results.summarize(arm, ("clean_top1", "corrupted_top1"))}
        for protocol in results.levels("protocol")
        if (arm := results.arm(protocol=protocol)) is not None
    ]
    tables = [
        make_table(
            "study-federated-table",
            "Federated methods",
            rows,
            "Personalized: on each client's own test images, mean over clients. Generic: on all test"
            " images; anchored ones there with the mean of the server's test images as reference."
            " Corrupted accuracy and calibration are pooled over clients.",
        ),
        make_table("study-federated-central", "The same network trained on all images", central),
    ]
    if references:
        note = "Accuracy of the generic model on each client's test images, mean over clients, %."
        title = "Generic anchored models by whose references they use"
        tables.append(make_table("study-federated-references", title, references, note))
    plots = [
        Plot(
            f"{method}",
            {
                protocol: {
                    record["round"]: results.by_seed(
                        CURVE, method=method, protocol=protocol, round=record["round"]
                    )
                    for record in results.records(metric=CURVE, method=method, protocol=protocol)
                }
                for protocol in results.levels("protocol")
            },
            "personalized accuracy, %",
            "round",
        )
        for method in options.methods
    ]
    return Findings(
        f"Personalized accuracy of {options.methods[0]}: {'; '.join(headline)}.",
        (draw_figure("study-federated", plots),),
        tuple(tables),
    )


STUDY = Study(
    name="federated",
    item="",
    title="Do clients gain from spectral co-distillation, and from anchoring?",
    about="personalized and generic accuracy of federated methods, robustness, calibration, time",
    options=Options,
    varies=("protocols",),
    arms=compare_protocols,
    check=check,
    findings=find,
    measure="killick.studies.federated.federations:measure",
    sizes={
        "small": Size(
            "shapes-federated",
            {"data.name": "digits", "data.limit": None, "data.size": 16, "augment.padding": 1}
            | {"network.arguments": {"stride": 2, "width": 8}, "epochs": 8},
            options={"rounds": 40},
            seeds=(0, 1, 2),
            evaluation={"corruptions": ("gaussian_noise", "motion_blur", "fog", "pixelate")}
            | {"severities": (3,), "limit": 400},
        ),
        "smoke": Size(
            "shapes-federated",
            {"network.arguments": {"stride": 4, "width": 4}, "data.limit": 120, "epochs": 1},
            options={
                "methods": ["spectral", "local"],
                "clients": 2,
                "rounds": 1,
                "federated_corruptions": ["fog"],
                "partitions": ["iid"],
            },
            evaluation={"corruptions": ("fog",), "severities": (3,)},
        ),
        "paper": Size(
            "cifar10-resnet18",
            {"network.name": "killick:resnet_small", "batch": 64, "epochs": 50}
            | {"schedule.name": "constant", "schedule.warmup": 0.0},
            options={
                "clients": 20,
                "rounds": 50,
                "partitions": ["dirichlet:alpha=0.5", "dirichlet:p=0.7,alpha=10"],
            },
            seeds=(0, 1, 2),
            remark="Needs --data cifar10 or pack:FILE, and a GPU. Untested.",
        ),
    },
    notes=(
        "Every method has the same rounds, local epochs, batches and first weights. The clock takes"
        " measured compute times of clients and links of 1 MB/s.",
    ),
)
STUDIES.register(STUDY.name, STUDY)
