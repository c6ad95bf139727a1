"""Standard training: the network sees the image alone."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from killick.errors import OptionError
from killick.protocols.base import PROTOCOLS, TrainingProtocol
from killick.settings import setting

if TYPE_CHECKING:
    from killick.protocols.base import Model


@dataclass
class StandardProtocol(TrainingProtocol):
    """The network alone, as usual."""

    name: str = setting("standard", "how the network is trained")

    def network(self, model: "Model", *, fresh: bool) -> "Model":
        """`model`, which must not be anchored."""
        from killick.core.anchored import Anchored

        if isinstance(model, Anchored):
            raise OptionError(
                "an anchored model cannot be trained with the protocol standard. Use anchored or"
                " masked, or fold it first (killick.fold)."
            )
        return model


PROTOCOLS.register("standard", StandardProtocol)
