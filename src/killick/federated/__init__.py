"""Federated training: clients with data of their own train a generic and personalized models.

In: a recipe and a federation (clients, partition, method, rounds). Out: a folder with both kinds of
models, accuracy by round and client, and a report. May import everything up to `experiments`. Read
`methods/fedavg.py` first, then `client_tasks` and `server_rounds`; engines move the messages. What
leaves a client: weights and counts, never an image.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from killick.federated.event_clock import ClientTimes as ClientTimes
    from killick.federated.event_clock import simulate as simulate
    from killick.federated.server_rounds import federate as federate
    from killick.federated.weight_spectrum import spectral_kl as spectral_kl
    from killick.federated.weight_spectrum import spectrum as spectrum

_HOMES = {  # imported when asked for: settings are listed without torch
    "ClientTimes": "event_clock",
    "federate": "server_rounds",
    "simulate": "event_clock",
    "spectral_kl": "weight_spectrum",
    "spectrum": "weight_spectrum",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _HOMES:
            return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
