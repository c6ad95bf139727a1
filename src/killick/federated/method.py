"""What a federated method decides: how a client trains each model, and what it uploads.

Methods are one file each in `methods/`, registered dataclasses whose fields are their settings:
`--method fedprox:strength=0.1`.
"""

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from torch import Tensor

from killick.registry import Registry

if TYPE_CHECKING:
    from killick.federated.local_client import LocalClient

State = dict[str, Tensor]  # weights and buffers of a network by name


class GenericResult(NamedTuple):
    """What training the generic model gives."""

    upload: State
    own: State | None = None  # new weights that stay with the client; None: as before


class Method:
    """A federated method. `received` is the generic model of this round, before its aggregation.

    `own` are the weights that a client keeps from round to round; at first those of the generic
    model.
    """

    uploads: ClassVar[bool] = True  # whether there is a generic model
    evaluates_generic: ClassVar[bool] = True  # whether the generic model is of use by itself
    trains_personal: ClassVar[bool] = False  # whether clients train a second model while they wait
    own_gradient: ClassVar[bool] = False  # whether it replaces the gradient of the loss
    keep_head: ClassVar[bool] = False  # whether the last layer is not uploaded

    def train_generic(self, client: "LocalClient", received: State, own: State) -> GenericResult:
        """Train the generic model on the client's data; what is uploaded."""
        return GenericResult(client.fit(received))

    def train_personal(self, client: "LocalClient", received: State, own: State) -> State:
        """Train the personalized model; what the client keeps."""
        return own

    def personalize(self, client: "LocalClient", generic: State, own: State) -> State:
        """The model that this client uses, from the aggregated generic one and its own weights."""
        return own if self.trains_personal else generic

    def average(self, before: State, mean: State) -> State:
        """The next generic model from the last one and the clients' mean."""
        return {**before, **mean}


METHODS: Registry[type[Method]] = Registry(
    "federated_methods", "federated method", package="killick.federated.methods"
)
