"""The sets that a model is tested and fitted on."""

from dataclasses import replace

from torch import Tensor

from kedge.data.images import ImageSet, Sets
from kedge.data.sources import load_sets, load_whole
from kedge.errors import DataError, OptionError
from kedge.evaluation.subject import Subject
from kedge.training.material import cut_sets
from kedge.training.recipe_files import make_recipe

Data = str | ImageSet | Sets | tuple[Tensor, Tensor]


def load_test(data: Data, root: str | None = None) -> ImageSet:
    """The set to test on that a user means."""
    if isinstance(data, ImageSet):
        return data
    if isinstance(data, tuple):
        images, labels = data
        classes = int(labels.max()) + 1 if len(labels) else 0
        return ImageSet.of("images", images.cpu(), labels, [str(c) for c in range(classes)])
    sets = data if isinstance(data, Sets) else load_sets(data, root=root)
    if sets.test is None:
        raise DataError(
            f"expected a set to test on in {data if isinstance(data, str) else 'the data'}, found"
            " only one to train on. Name a set with a test split."
        )
    return replace(sets.test, name=data) if isinstance(data, str) else sets.test


def own_test(subject: Subject, root: str | None = None) -> ImageSet:
    """The test set of the data that a model was trained on."""
    settings = subject.recipe.get("data")
    if not settings:
        raise OptionError(
            f"expected data to evaluate {subject.name} on, since it does not say what it was"
            " trained on: --data shapes, for example."
        )
    return load_test(settings["name"], root or settings.get("root"))


def load_train(data: Data | None, subject: Subject, root: str | None = None) -> ImageSet | None:
    """The set a model was trained on, as far as the data have one."""
    if data is None:
        settings = subject.recipe["data"]
        data, root = str(settings["name"]), root or settings.get("root")
    if isinstance(data, str):
        data = load_sets(data, root=root)
    return data.train if isinstance(data, Sets) else None


def load_validation(
    given: str | ImageSet | None, subject: Subject, test: ImageSet, root: str | None = None
) -> ImageSet | None:
    """The set to fit on: the one asked for, or that of the model's own training, if it had one.

    It is never the test set.
    """
    if isinstance(given, ImageSet):
        return given
    if given is not None:
        return load_whole(given, root=root)
    if not subject.recipe or subject.recipe.get("data", {}).get("name") != test.name:
        return None
    recipe = make_recipe(subject.recipe)
    if root is not None:
        recipe = replace(recipe, data=replace(recipe.data, root=root))
    return cut_sets(recipe).validation
