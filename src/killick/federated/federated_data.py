"""The data of a federation: what each client has, and the server's test set."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from killick import __version__
from killick.core.anchored import Anchored
from killick.core.references import ReferencePool
from killick.data.batches import read_all
from killick.data.image_set import ImageSet
from killick.data.keyed_random import key
from killick.data.preprocessing import PlainView
from killick.data.streams import StreamSet
from killick.data.training_sets import Parts, cut_sets
from killick.errors import DataError, OptionError
from killick.federated.federation_settings import FederationPlan
from killick.federated.local_client import LocalClient, state_of
from killick.federated.method import State
from killick.federated.partitions import ClassCounts, draw_partition
from killick.nets import IMAGENET_MEAN, IMAGENET_STD
from killick.protocols.base import Component, components_of, uses
from killick.protocols.scheduled import Stepwise
from killick.runtime.processes import Processes, choose_device
from killick.storage.weights import digest_weights
from killick.training.initial_weights import Model, Normalization, make_model
from killick.training.recipe import named_classes
from killick.training.validation import ValidationSet, validate

_KEPT_BYTES = 2 * 2**30
NUMBER_IN_SEED = 0x5EED  # of the first weights, as in any run


@dataclass(frozen=True)
class FederatedData:
    """Data and the first model; the same on every machine that has the same data and plan.

    `own` names the data of one client that has its own, instead of a part of the plan's.
    """

    plan: FederationPlan
    own: str | None = None

    @cached_property
    def parts(self) -> Parts:
        """The sets that are dealt to clients; or those of one client."""
        settings = self.plan.recipe.data
        if self.own is not None:
            settings = replace(settings, name=self.own)
        found = cut_sets(replace(settings, validation=0.0), self.plan.recipe.seed)
        if isinstance(found.train, StreamSet):
            raise OptionError(f"{settings.name} is a stream; clients need data that can be dealt.")
        if found.test is None:
            raise DataError(f"{settings.name} has no test set. Name data with one.")
        if self.own is not None and (names := self.plan.class_names):
            train, test = (_number_as(names, each) for each in (found.train, found.test))
            found = replace(found, train=train, test=test)
        return found

    @property
    def test(self) -> ImageSet:
        """All test images."""
        assert self.parts.test is not None
        return self.parts.test

    @cached_property
    def _dealt(self) -> dict[str, list[torch.Tensor]]:
        federation, train = self.plan.federation, self.parts.train
        labels = {"train": train.labels.numpy(), "test": self.test.labels.numpy()}
        found = draw_partition(
            federation.partition_settings,
            federation.clients,
            train.classes,
            labels,
            self.plan.recipe.seed,
        )
        return {name: [torch.from_numpy(own) for own in parts] for name, parts in found.items()}

    def check(self) -> None:
        """Refuse data, a partition, a method or a network that cannot be used, before anything runs."""
        self.plan.federation.method_settings  # noqa: B018
        self._dealt  # noqa: B018
        self.template  # noqa: B018

    def class_counts(self) -> ClassCounts:
        """Training images of each client and class."""
        train = self.parts.train
        dealt = [own.numpy() for own in self._dealt["train"]]
        return ClassCounts.of(dealt, train.labels.numpy(), train.class_names)

    @cached_property
    def device(self) -> torch.device:
        """Where models are trained."""
        return choose_device(self.plan.device)

    def client(self, number: int, round_: int) -> LocalClient:
        """A client in a round."""
        train, test = self.parts.train, self.test
        if self.own is None:
            name = f"{train.name}, client {number}"
            train = train.part(self._dealt["train"][number], name)
            test = test.part(self._dealt["test"][number], name)
        decoded = self._decoded.setdefault(number, {}) if self._fits else {}
        return LocalClient(
            self.plan, number, round_, train, test, self.template, self.device, decoded
        )

    @cached_property
    def _decoded(self) -> dict[int, dict[str, torch.Tensor]]:
        """Images of clients, kept for the next rounds."""
        return {}

    @cached_property
    def _fits(self) -> bool:
        """Whether all images may be kept in memory."""
        size = 3 * self.plan.recipe.data.size**2
        return (len(self.parts.train) + len(self.test)) * size <= _KEPT_BYTES

    @cached_property
    def template(self) -> Model:
        """The model with its first weights, on the CPU.

        Without `data.mean` it is normalized by ImageNet's constants: no client knows the statistics
        of all.
        """
        recipe = self.plan.recipe
        if (
            named_classes(recipe)
            or recipe.augment.policy != "none"
            or recipe.augment.crop == "resized"
        ):
            raise OptionError(
                "a federation takes no class_path, policy or crop: resized. Use crop: pad and flips."
            )
        for each in components_of(recipe):  # each round begins with new ones
            keeps = type(each).state_dict not in (Component.state_dict, Stepwise.state_dict)
            if keeps or uses(each, "inference"):
                raise OptionError(f"the component {each.name} cannot be used in a federation.")
            method = self.plan.federation.method_settings
            if method.own_gradient and uses(each, "gradient"):
                raise OptionError(
                    f"{self.plan.federation.method} and the component {each.name} both replace the"
                    " gradient: leave one out."
                )
        mean, std = recipe.data.mean, recipe.data.std
        normalize: Normalization = (IMAGENET_MEAN, IMAGENET_STD)
        if mean is not None and std is not None:
            normalize = (tuple(mean), tuple(std))
        seed = key(recipe.seed, NUMBER_IN_SEED) % 2**63
        return make_model(recipe, normalize, self.parts.train.class_names, seed)[0]

    @property
    def first_weights(self) -> State:
        """Of the generic model, and of every client's own."""
        return state_of(self.template)

    @cached_property
    def signature(self) -> str:
        """Stands for version, network, classes and first weights: equal where clients fit together."""
        names = ",".join(self.parts.train.class_names)
        return (
            f"{__version__} {self.plan.recipe.network.name} {digest_weights(self.template)} {names}"
        )

    def ready_generic(self, weights: State) -> Model:
        """The generic model as the server uses it.

        The server has no client's images: the reference of an anchored model is the mean of its own
        test images.
        """
        client = LocalClient(
            self.plan, -1, 0, self.parts.train, self.test, self.template, self.device
        )
        model = client.load(weights)
        if isinstance(model, Anchored):
            images = torch.cat(list(read_all(self.test, PlainView.of(self.plan.recipe.data))))
            model.set_references(ReferencePool(images).mean(), policy="mean of test images")
            model.reference_kind = "mean"
            model.mark_settled()
        return model.eval()

    @cached_property
    def _test_set(self) -> ValidationSet:
        view = PlainView.of(self.plan.recipe.data)
        return ValidationSet(self.test, view, Processes(0, 1, self.device), resident=True)

    def score_generic(self, weights: State) -> float:
        """Accuracy of the generic model on all test images."""
        model = self.ready_generic(weights)
        return validate(model, self._test_set, Processes(0, 1, self.device)).accuracy


def _number_as(names: tuple[str, ...], images: ImageSet) -> ImageSet:
    """Images with their classes numbered as the server does; they may be some of the server's."""
    if unknown := sorted({*images.class_names} - {*names}):
        raise DataError(
            f"{images.name} has the class {unknown[0]!r}, which the server has not. Use its names:"
            f" {', '.join(names)}."
        )
    numbers = torch.tensor([names.index(name) for name in images.class_names])
    return replace(images, labels=numbers[images.labels], class_names=names)
