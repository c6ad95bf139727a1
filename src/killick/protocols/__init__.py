"""How a training step makes its loss: one protocol and an ordered list of components.

A protocol decides what the network reads and what it is trained towards: standard, anchored or
masked. Components change parts of a step: the batch, the targets, the loss, the weights. Each is
one file with one registered class, whose fields are its settings in a recipe; help, checks, rows,
lists and resume read them from there. This package imports torch only in the hooks, so that
settings can be listed at once. May import `core`, `nets`, `data`, `storage` and `evaluation`.

In: settings, a model and batches. Out: losses.
"""

from killick.protocols.base import COMPONENTS as COMPONENTS
from killick.protocols.base import PROTOCOLS as PROTOCOLS
from killick.protocols.base import Component as Component
from killick.protocols.base import RunContext as RunContext
from killick.protocols.base import TrainingProtocol as TrainingProtocol
