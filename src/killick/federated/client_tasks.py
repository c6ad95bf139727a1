"""The work of a client in a round, the same in every engine.

In come a round, generic weights, and what the client kept. Out go weights and counts; the client's
own weights go to its store.
"""

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from killick.federated.client_store import ClientStore
from killick.federated.federated_data import FederatedData
from killick.federated.local_client import Counts
from killick.federated.method import Method, State
from killick.storage.saving import save


@dataclass(frozen=True)
class ClientTasks:
    """A client with its data and its store."""

    data: FederatedData
    number: int
    place: Path | None = None  # where it keeps its weights; beside the server's by default

    @property
    def _folder(self) -> Path:
        return self.place or self.data.plan.output / "clients" / f"{self.number:04}"

    @cached_property
    def _store(self) -> ClientStore:
        return ClientStore(self._folder)

    @cached_property
    def _method(self) -> Method:
        return self.data.plan.federation.method_settings

    def describe(self, *, fresh: bool) -> Counts:
        """How many training images there are; a `fresh` federation forgets what was kept."""
        if fresh:
            self._store.clear()
        return {"samples": len(self.data.client(self.number, 0).train)}

    def train_generic(self, round_: int, received: State) -> tuple[State, Counts]:
        """Train the generic model; what is uploaded."""
        client = self.data.client(self.number, round_)
        began = time.perf_counter()
        result = self._method.train_generic(client, received, self._own(before=round_))
        if result.own is not None:
            self._store.save(round_, result.own)
        return result.upload, {
            "samples": len(client.train),
            "seconds": time.perf_counter() - began,
        }

    def train_personal(self, round_: int, received: State) -> Counts:
        """Train the personalized model, and keep it."""
        client = self.data.client(self.number, round_)
        began = time.perf_counter()
        own = self._method.train_personal(client, received, self._own(before=round_))
        self._store.save(round_, own)
        return {"seconds": time.perf_counter() - began}

    def evaluate(self, round_: int, generic: State, *, last: bool = False) -> Counts:
        """Counts of the client's model on its test images; after the last round it is also saved."""
        client = self.data.client(self.number, round_)
        weights = self.personalized(round_, generic)
        if last:
            names = client.train.class_names
            save(client.ready(weights), self._folder / "model", class_names=names)
        return client.score(weights)

    def personalized(self, round_: int, generic: State) -> State:
        """The weights that this client uses after a round."""
        client = self.data.client(self.number, round_)
        return self._method.personalize(client, generic, self._own(before=round_ + 1))

    def _own(self, before: int) -> State:
        own = self._store.load(before)
        return self.data.first_weights if own is None else own
