"""A limit on the size of a network while it is made: a small file can name a huge one."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from killick.errors import OptionError
from killick.runtime.plain_files import allowed_memory

MOST_MODULES = 10**5
MOST_NUMBERS = 2**36


@contextmanager
def limited_size(numbers: int = MOST_NUMBERS, modules: int = MOST_MODULES) -> Iterator[None]:
    """Stop this thread when it makes networks of more numbers (weights and buffers) or modules."""
    thread, made = threading.get_ident(), {"numbers": 0, "modules": 0}
    limits = {"numbers": numbers, "modules": modules}

    def count(module: nn.Module, name: str, value: Any) -> None:
        if threading.get_ident() != thread or value is None:
            return
        kind = "modules" if isinstance(value, nn.Module) else "numbers"
        made[kind] += 1 if kind == "modules" else value.numel()
        if made[kind] > limits[kind]:
            raise OptionError(f"it has more than {limits[kind]:,} {kind}, the limit here")

    hooks = [
        register(count)
        for register in (
            register_module_parameter_registration_hook,
            register_module_buffer_registration_hook,
            register_module_module_registration_hook,
        )
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def limited_to(weights: Mapping[str, Tensor]) -> AbstractContextManager[None]:
    """The same limit for a network whose stored weights these are said to be."""
    stored = sum(tensor.nbytes for tensor in weights.values())
    return limited_size(allowed_memory(stored) // 4, 1000 + 50 * len(weights))
