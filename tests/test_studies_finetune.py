"""The fine-tuning study and its soups: means against a slow loop, statistics, resume."""

import copy
from dataclasses import replace

import pytest
import torch
from runs import small
from torch import nn

import killick
from killick.core.batchnorm import tracked_norms
from killick.core.references import ReferencePool
from killick.core.standard import standard
from killick.errors import DataError
from killick.nets import create
from killick.results.run_folder import read_job, read_run
from killick.runtime.progress import choose_display
from killick.studies.findings import make_results
from killick.studies.finetune import STUDY, Options, make_arms, soups
from killick.studies.finetune.soups import (
    StatisticsImages,
    _validation_accuracy,
    average,
    average_greedily,
    take_samples,
)
from killick.studies.study import make_plan
from killick.studies.study_runner import plan_jobs, run_study
from killick.studies.trained_job import TrainedJob

MEAN = ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def images(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, 3, 16, 16)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def plain_model():
    return standard(create("killick:resnet_small", num_classes=4), MEAN, image_shape=(3, 16, 16))


def anchored_model():
    model = killick.anchor(plain_model())
    return model.set_references(images(3, 7), policy="random by class, clean")


def tuned(base, seed: int, size: float = 0.02):
    """As after some more training: other weights, other statistics."""
    generator = torch.Generator().manual_seed(seed)
    model = copy.deepcopy(base)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(size * torch.randn(weight.shape, generator=generator))
        for norm in tracked_norms(model):
            norm.running_mean.add_(torch.randn(norm.running_mean.shape, generator=generator))
    return model.eval()


def samples(pool: bool = True) -> StatisticsImages:
    references = ReferencePool(images(20, 3)) if pool else None
    return StatisticsImages((images(32, 1), images(32, 2)), references, 5)


def statistics(model) -> list[torch.Tensor]:
    return [t for norm in tracked_norms(model) for t in (norm.running_mean, norm.running_var)]


def assert_equal_models(one, two) -> None:
    mine, theirs = one.state_dict(), two.state_dict()
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert torch.equal(mine[name], theirs[name]), name


@pytest.mark.parametrize("make", [plain_model, anchored_model])
def test_weights_are_the_mean_as_a_slow_loop_finds_it(make):
    base = make()
    models = [tuned(base, seed) for seed in range(3)]
    soup = average(models, samples())
    for name, weight in soup.named_parameters():
        found = weight.flatten().tolist()
        values = [dict(m.named_parameters())[name].flatten().tolist() for m in models]
        for place, each in enumerate(found[:200]):
            slow = sum(own[place] for own in values) / 3  # in double precision
            assert each == pytest.approx(slow, rel=1e-6, abs=1e-9), name


@pytest.mark.parametrize("make", [plain_model, anchored_model])
@pytest.mark.parametrize("count", [1, 4])
def test_a_soup_of_one_or_of_the_same_is_itself(make, count):
    model = tuned(make(), 0)
    assert_equal_models(average([model] * count, samples()), model)


def test_models_in_a_soup_stay_as_they_are():
    models = [tuned(anchored_model(), seed) for seed in range(2)]
    before = [copy.deepcopy(model) for model in models]
    average(models, samples())
    for model, was in zip(models, before, strict=True):
        assert_equal_models(model, was)


@pytest.mark.parametrize("pool", [True, False])
def test_statistics_of_an_anchored_soup_are_those_that_settle_finds_on_the_same_pairs(pool):
    base, given = anchored_model(), samples(pool)
    soup = average([tuned(base, seed) for seed in range(2)], given)
    expected = tuned(soup, 9, size=0.0)  # the same weights under other statistics
    generator = torch.Generator().manual_seed(given.seed)
    killick.settle(expected, given.batches, references=given.pool, generator=generator)
    assert_equal_models(soup, expected)


def test_statistics_of_a_standard_soup_are_the_means_over_its_own_batches():
    base, given = plain_model(), samples()
    soup = average([tuned(base, seed) for seed in range(2)], given)
    seen: dict[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    trial = copy.deepcopy(soup).double()
    trial.normalize.float()  # as it takes images
    for norm in tracked_norms(trial):
        norm.register_forward_pre_hook(
            lambda norm, args: seen.setdefault(norm, []).append(
                (args[0].mean((0, 2, 3)), args[0].transpose(0, 1).flatten(1).var(1))
            )
        )
        norm.training = True
    for batch in given.batches:
        with torch.no_grad():
            trial.net(trial.normalize(batch).double())
    for mine, own in zip(tracked_norms(soup), tracked_norms(trial), strict=True):
        for place, statistic in enumerate((mine.running_mean, mine.running_var)):
            expected = sum(each[place] for each in seen[own]) / len(seen[own])
            torch.testing.assert_close(statistic.double(), expected, rtol=1e-4, atol=1e-5)


def test_statistics_are_not_the_mean_of_statistics():
    models = [tuned(plain_model(), seed) for seed in range(2)]
    soup = average(models, samples())
    pairs = zip(statistics(soup), *(statistics(model) for model in models), strict=True)
    assert not any(torch.allclose(own, (a + b) / 2, atol=1e-3) for own, a, b in pairs)


def test_a_network_without_batchnorm_needs_no_samples():
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4))
    models = [tuned(standard(net, MEAN, image_shape=(3, 16, 16)), seed) for seed in range(2)]
    average(models, StatisticsImages(()))


def test_a_soup_keeps_references_and_names_of_the_first():
    base = anchored_model()
    base.class_names = ("a", "b", "c", "d")
    soup = average([tuned(base, seed) for seed in range(2)], samples())
    assert torch.equal(soup.references, base.references)
    assert (soup.class_names, soup.reference_policy) == (base.class_names, base.reference_policy)
    assert not soup.training


def test_a_greedy_soup_takes_up_what_does_not_harm():
    base = plain_model()
    models = [tuned(base, seed) for seed in range(4)]
    marks = [1.0, 4.0, 2.0, 3.0]
    for model, mark in zip(models, marks, strict=True):
        with torch.no_grad():
            model.net.fc.weight.fill_(mark)

    def score(model) -> float:
        """Best at 3.5: models 1 and 3 together; model 2 would bring it to 3."""
        return -abs(float(model.net.fc.weight.detach().mean()) - 3.5)

    soup, kept = average_greedily(models, samples(), score)
    assert kept == [1, 3]
    assert score(soup) == 0
    assert_equal_models(soup, average([models[1], models[3]], samples()))


def test_a_greedy_soup_of_the_best_alone_is_the_best_itself():
    models = [tuned(plain_model(), seed) for seed in range(2)]
    scores = iter([0.2, 0.9, 0.5])  # the third is that of both together
    soup, kept = average_greedily(models, samples(), lambda model: next(scores))
    assert kept == [1]
    assert_equal_models(soup, models[1])


def test_a_greedy_soup_takes_up_what_is_as_good():
    models = [tuned(plain_model(), seed) for seed in range(2)]
    assert average_greedily(models, samples(), lambda model: 0.5)[1] == [0, 1]


def test_samples_are_the_first_of_training_with_the_references_it_draws_from(image_folder):
    recipe = small(image_folder, data__workers=0)
    found = take_samples(recipe, torch.device("cpu"))
    assert [len(batch) for batch in found.batches] == [4, 4, 4, 4]
    assert found.batches[0].dtype == torch.uint8
    assert not torch.equal(found.batches[0], found.batches[1])
    assert len(found.pool) == 16
    own = small(image_folder, data__workers=0, protocol__references="batch", batch=8, accumulate=2)
    again = take_samples(own, torch.device("cpu"))
    assert again.pool is None
    assert [len(batch) for batch in again.batches] == [4, 4, 4, 4]
    none = take_samples(small(image_folder, protocol__name="standard"), torch.device("cpu"))
    assert none.pool is None


def test_a_greedy_soup_needs_validation_images_and_never_sees_the_test_set(
    image_folder, monkeypatch
):
    model = anchored_model()
    recipe = small(image_folder, data__workers=0)
    with pytest.raises(DataError, match="--data.validation"):
        _validation_accuracy(TrainedJob(model, recipe, torch.device("cpu")))
    held = replace(recipe, data=replace(recipe.data, validation=4))
    trained = TrainedJob(model, held, torch.device("cpu"))
    score = _validation_accuracy(trained)(model)
    shown, parts = trained.parts.validation, trained.parts
    logits = model.eval()(trained.load_images(shown))
    assert score == pytest.approx(float((logits.argmax(1) == shown.labels).float().mean()))
    assert not set(shown.rows.tolist()) & set(parts.test.rows.tolist())


# The study

PLAN = make_plan(STUDY, "smoke", settings={"data.validation": 40})
SOUPS = {"soup-standard", "soup-masked-label"}


@pytest.fixture(scope="module")
def ran(tmp_path_factory, here, few_shapes):
    output = tmp_path_factory.mktemp("finetune")
    return output, run_study(PLAN, output, device="cpu", quiet=True)


def runs_of(output):
    return {path.name.rpartition("-seed")[0]: path for path in output.glob("*-seed0-*")}


def test_all_tuned_runs_start_from_one_base_and_differ_in_protocol_and_rate_alone(tmp_path):
    plan = make_plan(STUDY, "small")
    cells = {cell.arm: cell for cell in plan_jobs(plan, tmp_path) if cell.seed == 0}
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
    made = make_arms(Options(soup=[0.5, 3.0]), {})
    masked = [t.factors for t in made if t.arm.name.startswith("tuned-masked")]
    assert [(own["factor"], own["soup"]) for own in masked] == [
        (1.0, False),
        (0.5, True),
        (3.0, True),
    ]


@pytest.mark.slow
def test_what_is_shown_is_what_the_runs_have(ran):
    output, result = ran
    (figure,) = result.findings.figures
    shown = [record for record in figure.records if record[0] == "corrupted accuracy"]
    assert len(shown) == 8
    for _, _, arm, seed, value in shown:
        (own,) = {
            row["value"]
            for row in read_run(runs_of(output)[arm]).rows
            if (row["corruption"], row["metric"], row["inference"]) == ("fog", "top1", "single")
        }
        assert (seed, value) == (0, pytest.approx(100 * own))


@pytest.mark.slow
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


@pytest.mark.slow
def test_finished_soups_are_kept_and_an_interrupted_one_goes_on(ran, monkeypatch):
    output, _ = ran
    cells = plan_jobs(PLAN, output)

    def finish():
        return soups.make_soups(PLAN, cells, output, device="cpu", show=choose_display(None, True))

    folders = {path.name.rpartition("-seed")[0]: path for path in finish()}
    assert set(folders) == SOUPS
    monkeypatch.setattr(soups, "evaluate", lambda *args, **options: pytest.fail("evaluated again"))
    assert set(finish()) == set(folders.values())
    cut = folders["soup-standard"]
    before = read_job(cut)
    (cut / "job.json").unlink()
    monkeypatch.setattr(soups, "_save_soup", lambda *args: pytest.fail("made again"))
    with pytest.raises(pytest.fail.Exception, match="evaluated again"):
        finish()
    assert read_job(cut) == {}
    monkeypatch.setattr(soups, "evaluate", killick.evaluate)
    finish()
    after = read_job(cut)
    assert after["evaluation_digest"] == before["evaluation_digest"]
    assert after["finished"] is True


@pytest.mark.slow
def test_another_evaluation_is_made_of_the_same_soup(ran, monkeypatch):
    output, _ = ran
    other = make_plan(STUDY, "smoke", settings=PLAN.settings, evaluation={"severities": (3,)})
    cells = plan_jobs(other, output)
    asked = []
    monkeypatch.setattr(soups, "evaluate", lambda *args, **options: asked.append(options))
    monkeypatch.setattr(soups, "_save_soup", lambda *args: pytest.fail("made again"))
    monkeypatch.setattr(soups, "write_atomic", lambda *args: None)
    soups.make_soups(other, cells, output, device="cpu", show=choose_display(None, True))
    assert [options["severities"] for options in asked] == [(3,)] * 2


@pytest.mark.slow
def test_one_run_is_no_soup(ran):
    output, _ = ran
    cells = [c for c in plan_jobs(PLAN, output) if "lr0.04" not in c.arm]
    assert (
        soups.make_soups(PLAN, cells, output, device="cpu", show=choose_display(None, True)) == []
    )


@pytest.mark.slow
def test_greedy_soups_are_made_where_they_are_asked_for(ran):
    output, _ = ran
    plan = make_plan(STUDY, "smoke", settings=PLAN.settings, options={"greedy": True})
    cells = plan_jobs(plan, output)
    assert all(cell.finished for cell in cells)
    found = soups.make_soups(plan, cells, output, device="cpu", show=choose_display(None, True))
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


@pytest.mark.slow
def test_half_a_study_is_shown_without_what_is_missing(ran):
    output, _ = ran
    there = [read_run(runs_of(output)[name]) for name in ("base", "tuned-standard-lr0.02")]
    shown = STUDY.findings(make_results(PLAN, there))
    assert len(shown.tables[0].rows) == 2
