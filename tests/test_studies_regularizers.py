"""The study `regularizers`: its arms, its table against rows, ranks and what masking adds."""

import csv
import statistics

import pytest

from killick.cli import main
from killick.errors import OptionError
from killick.results.rows import read_rows
from killick.studies import find_study
from killick.studies.regularizers import make_arm
from killick.studies.study import make_plan

pytestmark = pytest.mark.usefixtures("few_shapes")


@pytest.fixture(scope="module")
def output(tmp_path_factory, here, few_shapes):
    """The study at its smallest size."""
    folder = tmp_path_factory.mktemp("regularizers")
    words = ["study", "regularizers", "--size", "smoke", "--output", str(folder), "--quiet"]
    assert main(words) == 0
    return folder


def table(output, name):
    with open(output / "figures" / f"study-regularizers{name}.csv") as file:
        return list(csv.DictReader(file))


def rows_of(output, arm):
    (folder,) = output.glob(f"{arm}-seed0-*")
    return [row for row in read_rows(folder) if row["limit"] == 20 and row["inference"] == "single"]


def test_the_table_holds_the_means_of_rows(output):
    lines = {(line["regularizer"], line["protocol"]): line for line in table(output, "-table")}
    assert list(lines) == [
        (method, protocol)
        for method in ("none", "ensemble:members=2")
        for protocol in ("standard", "masked-label")
    ]
    for key, arm, cost in (
        (("none", "masked-label"), "masked-label", "1"),
        (("ensemble:members=2", "standard"), "ensemble", "2"),
    ):
        line, rows = lines[key], rows_of(output, arm)

        def mean(suite, metric, scaling="", rows=rows, **where):
            return statistics.fmean(
                row["value"]
                for row in rows
                if (row["suite"], row["metric"], row["scaling"]) == (suite, metric, scaling)
                and not row["mean_of"]
                and all(row[name] == value for name, value in where.items())
            )

        expected = {
            "C": 100 * mean("corruptions", "top1"),
            "C-bar": 100 * mean("cbar", "top1"),
            "occluded": 100 * mean("occlusion", "top1"),
            "PGD-20": 100 * mean("adversarial", "top1", corruption="pgd20"),
            "synthetic OOD AUROC": 100 * mean("ood", "auroc", score="energy"),
            "NLL, C, temperature": mean("corruptions", "nll", "temperature"),
            "THR size, C": mean("corruptions", "conformal_thr_size"),
        }
        if arm == "ensemble":
            expected["ambiguity"] = 100 * mean("multiplicity", "ambiguity")
        else:
            assert line["ambiguity"] == "–"
        for title, value in expected.items():
            assert float(line[title]) == pytest.approx(value, abs=0.051)
        assert line["training cost"] == line["inference cost"] == cost
        (noisy,) = [
            row["value"]
            for row in rows_of(output, f"noise20+{arm}")
            if (row["suite"], row["metric"]) == ("clean", "top1")
        ]
        assert float(line["label noise"]) == pytest.approx(100 * noisy, abs=0.051)


def test_what_masking_adds_is_the_difference_to_the_same_without(output):
    lines = {line["regularizer"]: line for line in table(output, "-masked-label")}
    whole = {(line["regularizer"], line["protocol"]): line for line in table(output, "-table")}
    gains = {}
    for method, line in lines.items():
        ours, theirs = (float(whole[method, p]["C"]) for p in ("masked-label", "standard"))
        gains[method] = float(line["C"].replace("−", "-"))
        assert gains[method] == pytest.approx(ours - theirs, abs=0.11)
    beyond = lines["ensemble:members=2"]["C, beyond masked-label alone"].replace("−", "-")
    assert float(beyond) == pytest.approx(gains["ensemble:members=2"] - gains["none"], abs=0.11)
    assert lines["none"]["C, beyond masked-label alone"] == "–"


def test_ranks_are_means_over_columns(output):
    with open(output / "figures" / "study-regularizers.csv") as file:
        records = [line for line in csv.DictReader(file) if line["panel"] == "Ranks: Accuracy"]
    columns = ("clean", "C", "C-bar", "occluded", "FGSM", "PGD-20", "label noise")
    lines = table(output, "-table")
    for record in records:
        ranks = []
        for column in columns:
            values = [float(line[column]) for line in lines]
            (own,) = [
                float(line[column])
                for line in lines
                if (line["regularizer"], line["protocol"]) == (record["level"], record["protocol"])
            ]
            better, same = sum(v > own for v in values), sum(v == own for v in values)
            ranks.append(better + (same + 1) / 2)
        assert float(record["value"]) == pytest.approx(statistics.fmean(ranks), abs=0.01)
    assert len(records) == 4


def test_the_report_sets_gain_against_cost(output):
    page = (output / "report.html").read_text()
    assert '<section id="costs"' in page


def test_methods_are_components_policies_and_inferences():
    assert make_arm("none", "masked-label").name == "masked-label"
    assert make_arm("augmix", "standard").settings["augment.policy"] == "augmix"
    sharp = make_arm("sam:rho=0.1", "masked-label")
    assert (sharp.name, sharp.settings["components"][0]["rho"]) == ("sam+masked-label", 0.1)
    assert make_arm("dropout+mc-dropout", "standard").trained == "dropout"
    with pytest.raises(OptionError, match="takes no protocols"):
        make_arm("sam+masked-label", "standard")
    with pytest.raises(OptionError, match="did you mean 'sam'"):
        make_plan(find_study("regularizers"), "small", options={"methods": ["samm"]})
