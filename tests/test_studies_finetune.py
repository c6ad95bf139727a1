import pytest
import torch

import killick
from killick.errors import OptionError
from killick.experiments.job_runner import run_job
from killick.experiments.scheduler import Worked
from killick.results.run_folder import read_job, read_run
from killick.runtime.progress import choose_display
from killick.studies import running, soups
from killick.studies.finetune import STUDY, Options, treat
from killick.studies.results import make_results
from killick.studies.running import plan_cells, run_study
from killick.studies.study import make_plan

pytestmark = pytest.mark.usefixtures("here", "few_shapes")

PLAN = make_plan(STUDY, "smoke")
SOUPS = {"soup-standard", "soup-masked-label"}


def run_here(cells, output, **options) -> Worked:
    """Run cells in this process: it has torch already."""
    for cell in cells:
        assert cell.finished or run_job(cell, threads=1, device="cpu")["status"] == "finished"
    return Worked()


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    output = tmp_path_factory.mktemp("finetune")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "work", run_here)
        return output, run_study(PLAN, output, device="cpu", quiet=True)


def runs_of(output):
    return {path.name.rpartition("-seed")[0]: path for path in output.glob("*-seed0-*")}


def test_all_tuned_runs_start_from_one_base_and_differ_in_protocol_and_rate_alone(tmp_path):
    plan = make_plan(STUDY, "small")
    cells = {cell.arm: cell for cell in plan_cells(plan, tmp_path) if cell.seed == 0}
    assert len(cells) == 1 + 2 * 3 + 1
    base = cells["base"]
    assert base.phases[0].recipe.protocol.name == "standard"
    for protocol in ("standard", "masked-label"):
        for rate in (0.01, 0.02, 0.04):
            cell = cells[f"tuned-{protocol}-lr{rate:g}"]
            first, second = cell.phases
            assert first == base.phases[0]
            assert second.start == str(base.folder)
            assert (second.recipe.epochs, second.recipe.optimizer.lr) == (10, pytest.approx(rate))
            assert second.recipe.protocol.anchored == (protocol != "standard")
    tuned = cells["tuned-masked-label-lr0.02"].phases[1].recipe.protocol
    assert (tuned.stem, tuned.target, tuned.name) == ("exact", "label", "masked")
    (scratch,) = cells["scratch-masked-label"].phases
    assert scratch.recipe.epochs == base.phases[0].recipe.epochs + 10 == 40
    assert scratch.start is None


def test_the_run_that_is_compared_is_trained_also_where_it_is_in_no_soup():
    made = treat(Options(soup=[0.5, 3.0]), {})
    masked = [t.factors for t in made if t.arm.name.startswith("tuned-masked")]
    assert [(own["factor"], own["soup"]) for own in masked] == [
        (1.0, False),
        (0.5, True),
        (3.0, True),
    ]


def test_budgets_have_names_of_their_own():
    with pytest.raises(OptionError, match="base_epochs and tuning_epochs"):
        make_plan(STUDY, "smoke", settings={"epochs": 3})
    with pytest.raises(OptionError, match="multiples above 0"):
        make_plan(STUDY, "smoke", options={"soup": [1.0, -2.0]})


def test_the_study_runs_from_one_end_to_the_other_with_soups_as_arms(ran):
    output, result = ran
    assert (result.failed, result.interrupted) == ([], False)
    arms = {arm.name for arm in PLAN.arms} | SOUPS
    assert arms <= set(runs_of(output))
    (table,) = result.shown.tables
    assert len(table.rows) == len(arms)
    spent = {row[0]: row[1] for row in table.rows}
    assert spent["base, standard"] == "1"
    assert spent["tuned, masked, lr 0.02"] == spent["scratch, masked"] == "2"
    assert spent["soup, masked"] == spent["soup, standard"] == "3"
    assert {row[-1] for row in table.rows if row[0] == "tuned, standard, lr 0.02"} == {"–"}
    (figure,) = result.shown.figures
    assert {record[0] for record in figure.records} == arms
    assert [panel.name for panel in figure.panels] == [
        "study-finetune-corrupted_top1",
        "study-finetune-corrupted_smooth_ece",
    ]
    page = result.report.read_text()
    assert STUDY.title in page
    assert "soup, masked" in page


def test_what_is_shown_is_what_the_runs_have(ran):
    output, result = ran
    (figure,) = result.shown.figures
    for arm, seed, measure, value in figure.records:
        if measure == "corrupted_top1":
            (own,) = {
                row["value"]
                for row in read_run(runs_of(output)[arm]).rows
                if (row["corruption"], row["metric"], row["inference"]) == ("fog", "top1", "single")
            }
            assert (seed, value) == (0, pytest.approx(own))


def test_sentences_claim_nothing_that_one_seed_of_60_pictures_does_not_carry(ran):
    _, result = ran
    said = result.shown.says
    for text in ("equally long standard fine-tuning", "from scratch", "a soup of masked runs"):
        assert text in said
    accuracy, error = said.split(" Smooth ECE, masked against standard: ")
    for part in (*accuracy.split(";"), error):
        interval = part[part.index("(") + 1 : part.index(")")].replace("−", "-").split(" to ")
        low, high = (float(end) for end in interval)
        assert ("no clear difference" in part) == (low <= 0 <= high)


def test_a_soup_is_the_mean_of_its_runs_and_says_so(ran):
    output, _ = ran
    folder = runs_of(output)["soup-masked-label"]
    about = read_job(folder)
    assert about["factors"] == {"way": "soup", "protocol": "masked-label"}
    names = [f"tuned-masked-label-lr{rate}" for rate in ("0.02", "0.04")]
    assert [name.rpartition("-seed")[0] for name in about["ingredients"]] == names
    soup = killick.load(folder / "model")
    assert soup.provenance["soup"]["of"] == about["ingredients"]
    one, two = (killick.load(output / name / "model") for name in about["ingredients"])
    for (name, mean), a, b in zip(
        soup.named_parameters(), one.parameters(), two.parameters(), strict=True
    ):
        expected = ((a.double() + b.double()) / 2).float()
        assert torch.equal(mean, expected), name
    assert torch.equal(soup.references, one.references)


def test_finished_soups_are_kept_and_an_interrupted_one_goes_on(ran, monkeypatch):
    output, _ = ran
    cells = plan_cells(PLAN, output)

    def finish():
        return soups.finish(PLAN, cells, output, device="cpu", show=choose_display(None, True))

    folders = {path.name.rpartition("-seed")[0]: path for path in finish()}
    assert set(folders) == SOUPS
    monkeypatch.setattr(soups, "evaluate", lambda *args, **options: pytest.fail("evaluated again"))
    assert set(finish()) == set(folders.values())
    cut = folders["soup-standard"]
    before = read_job(cut)
    (cut / "job.json").unlink()
    monkeypatch.setattr(soups, "_cook", lambda *args: pytest.fail("made again"))
    with pytest.raises(pytest.fail.Exception, match="evaluated again"):
        finish()
    assert read_job(cut) == {}
    monkeypatch.setattr(soups, "evaluate", killick.evaluate)
    finish()
    after = read_job(cut)
    assert after["asked"] == before["asked"]
    assert after["finished"] is True


def test_another_evaluation_is_made_of_the_same_soup(ran, monkeypatch):
    output, _ = ran
    other = make_plan(STUDY, "smoke", evaluation={"severities": (3,)})
    cells = plan_cells(PLAN, output)
    asked = []
    monkeypatch.setattr(soups, "evaluate", lambda *args, **options: asked.append(options))
    monkeypatch.setattr(soups, "_cook", lambda *args: pytest.fail("made again"))
    monkeypatch.setattr(soups, "write_atomic", lambda *args: None)
    soups.finish(other, cells, output, device="cpu", show=choose_display(None, True))
    assert [options["severities"] for options in asked] == [(3,)] * 2


def test_one_run_is_no_soup(ran):
    output, _ = ran
    cells = [c for c in plan_cells(PLAN, output) if "lr0.04" not in c.arm]
    assert soups.finish(PLAN, cells, output, device="cpu", show=choose_display(None, True)) == []


def test_greedy_soups_without_pictures_to_choose_on_are_refused_before_anything_runs(tmp_path):
    options = {"greedy": True, "soup": [1.0, 2.0]}
    bare = make_plan(STUDY, "smoke", options=options, settings={"data.validation": 0})
    with pytest.raises(OptionError, match=r"set aside to choose greedy soups on.*--greedy false"):
        plan_cells(bare, tmp_path)
    alone = make_plan(STUDY, "smoke", options=options | {"soup": [1.0]}, settings=bare.settings)
    for plan in (make_plan(STUDY, "smoke", options=options), alone):
        assert plan_cells(plan, tmp_path)


def test_greedy_soups_are_made_where_they_are_asked_for(ran):
    output, _ = ran
    plan = make_plan(STUDY, "smoke", options={"greedy": True})
    cells = plan_cells(plan, output)
    assert all(cell.finished for cell in cells)
    found = soups.finish(plan, cells, output, device="cpu", show=choose_display(None, True))
    about = {read_job(folder)["arm"]: read_job(folder)["factors"]["way"] for folder in found}
    assert about == {
        "soup-standard": "soup",
        "greedy-soup-standard": "greedy-soup",
        "soup-masked-label": "soup",
        "greedy-soup-masked-label": "greedy-soup",
    }
    for folder in found:
        said = killick.load(folder / "model").provenance["soup"]
        assert set(said["of"]) <= set(read_job(folder)["ingredients"])
        assert said["way"] == read_job(folder)["factors"]["way"]


def test_half_a_study_is_shown_without_what_is_missing(ran):
    output, _ = ran
    there = [read_run(runs_of(output)[name]) for name in ("base", "tuned-standard-lr0.02")]
    shown = STUDY.show(make_results(PLAN, there))
    assert shown.says == "Corrupted accuracy: not enough is finished."
    assert len(shown.tables[0].rows) == 2
