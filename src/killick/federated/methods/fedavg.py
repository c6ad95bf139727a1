"""FedAvg (McMahan et al. 2017): clients train the generic model, the server averages it."""

from dataclasses import dataclass

from killick.federated.method import METHODS, Method


@dataclass(frozen=True)
class FedAvg(Method):
    """One generic model for all."""


METHODS.register("fedavg", FedAvg)
