"""A GPU that is not there: tensors that say they are on cuda:0, computed on the CPU.

What a GPU refuses is refused: operations on tensors of two devices, generators of the other one, and,
while waiting is forbidden or a graph is captured, whatever waits for the device. A captured graph is a
list of operations and of places in memory, which it does not keep alive; capturing runs nothing.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch._dynamo  # before anything is replaced: it has tables of torch's functions
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
aten = torch.ops.aten
COPIES = (aten.copy_.default, aten._to_copy.default)
INDEXED = (aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default)
WAITING = {  # the host needs a size or a value
    *(aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default),
    *(aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default),
    *(aten.repeat_interleave.Tensor, aten.bincount.default, aten.equal.default),
    *(aten._linalg_check_errors.default, aten._linalg_eigh.default, aten._linalg_svd.default),
}


class State:
    """What is going on."""

    graph: "Graph | None" = None  # that is captured
    thread = 0  # which captures it
    forbidden = False  # to wait
    generators: set[int] = set()  # of the GPU
    active = threading.local()


def captured() -> "Graph | None":
    """The graph that this thread captures."""
    return State.graph if State.thread == threading.get_ident() else None


def wait(what: object = "synchronize", *_: object) -> None:
    """Refuse to wait for the device, where that is an error."""
    if State.forbidden or captured() is not None:
        raise RuntimeError(f"{what} waits for the device")


class OnDevice(Tensor):
    """A tensor of the GPU; `inner` has the numbers."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @staticmethod
    def __new__(cls, inner: Tensor) -> "OnDevice":
        size, strides, offset = inner.size(), inner.stride(), inner.storage_offset()
        made = Tensor._make_wrapper_subclass(
            cls, size, strides=strides, storage_offset=offset, dtype=inner.dtype
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})

    def __deepcopy__(self, memo):
        made = OnDevice(self.inner.clone()).requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            made = torch.nn.Parameter(made, self.requires_grad)
        return memo.setdefault(id(self), made)

    def untyped_storage(self):
        return self.inner.untyped_storage()


def over(change: Callable[[Any], Any], tree: Any) -> Any:
    """Tensors and places in arguments, changed."""
    if isinstance(tree, Tensor | Place):
        return change(tree)
    if type(tree) is dict:
        return {key: over(change, each) for key, each in tree.items()}
    return type(tree)(over(change, x) for x in tree) if type(tree) in (list, tuple) else tree


def tensors_in(*trees: Any) -> list[Tensor]:
    found: list[Tensor] = []
    over(found.append, trees)
    return found


def inner_of(tree: Any) -> Any:
    return over(lambda each: each.inner if isinstance(each, OnDevice) else each, tree)


def compute(func: Any, args: Any, kwargs: Any) -> Any:
    """An operation, by the rules of a GPU if any of it is there."""
    tensors = tensors_in(args, kwargs)
    ours = [each for each in tensors if isinstance(each, OnDevice)]
    device = kwargs.get("device")
    cuda = device is not None and torch.device(device).type == "cuda"
    like = device is not None and not cuda and "like" in func.__name__  # of the CPU on purpose
    if like or not (ours or cuda):
        found = func(*inner_of(args), **kwargs)
        if func is aten.scalar_tensor.default:  # by C++, which would make it on the GPU there
            found.number = True
        return found
    there = {id(each) for each in ours}
    others = [x for x in tensors if id(x) not in there and not hasattr(x, "number")]
    if others and func in COPIES:
        if captured() or not (kwargs.get("non_blocking") or args[2:] == (True,)):
            wait("a copy between devices")
    elif others and func in INDEXED:
        wait("an index on the CPU")
    elif any(each.ndim or captured() for each in others):
        raise RuntimeError(f"{func} of tensors on two devices")
    if func in WAITING or (
        func in INDEXED and any(x is not None and x.dtype == torch.bool for x in args[1])
    ):
        wait(func)
    generator = kwargs.get("generator")
    if generator is not None and generator._cdata not in State.generators:
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    mine, given = inner_of(args), inner_of(kwargs)
    if device is not None:
        given["device"] = CPU
    changed = written(func, args, kwargs)
    if graph := captured():
        graph.save(inner_of(changed))
    found = func(*mine, **given)
    if graph:
        graph.note(func, mine, given, found)
    back = {id(each.inner): each for each in changed if isinstance(each, OnDevice)}
    return over(lambda x: back[id(x)] if id(x) in back else wrap(x, changed), found)


def wrap(found: Tensor, changed: list[Tensor]) -> Tensor:
    same = any(found is each for each in changed)  # on the CPU, where something was copied to
    return found if same else OnDevice(found)


def written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that an operation writes to."""
    given = [
        (x, args[n] if n < len(args) else kwargs.get(x.name))
        for n, x in enumerate(func._schema.arguments)
    ]
    found = [value for x, value in given if x.alias_info is not None and x.alias_info.is_write]
    if func is aten.native_batch_norm.default:  # it does not say so
        found += args[3:5]
    return tensors_in(found)


class Place(NamedTuple):
    """Where a tensor lies in memory, which this does not keep alive."""

    storage: StorageWeakRef
    dtype: torch.dtype
    view: tuple[Any, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> "Place | Tensor":
        if hasattr(tensor, "number") or not tensor.numel():
            return tensor
        view = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        return cls(StorageWeakRef(tensor.untyped_storage()), tensor.dtype, view)

    def tensor(self) -> Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None:
            raise RuntimeError("a captured graph reads memory that was freed")
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.view)


def storages(tree: Any) -> dict[int, torch.UntypedStorage]:
    """The memory of tensors, by its address."""
    found = [x.untyped_storage() for x in tensors_in(tree)]
    return {each.data_ptr(): each for each in found}


class Graph:
    """A CUDA graph."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}  # what it has written over
        self._own: dict[int, torch.UntypedStorage] = {}  # its own memory

    def save(self, tensors: list[Tensor]) -> None:
        """Keep what an operation will write over."""
        for place, storage in storages(tensors).items():
            if place not in self._before and place not in self._own:
                whole = torch.empty(0, dtype=torch.uint8).set_(storage)
                self._before[place] = (whole, whole.clone())

    def note(self, func: Any, args: Any, kwargs: Any, found: Any) -> None:
        """Note an operation, which ran once to see what it makes."""
        known = storages((args, kwargs))
        self._own |= {n: each for n, each in storages(found).items() if n not in known}
        self.steps.append((func, over(Place.of, (args, kwargs, found))))

    def end(self) -> None:
        """Nothing was run: put back what was there."""
        for whole, before in self._before.values():
            whole.copy_(before)
        self._before.clear()

    def replay(self) -> None:
        """Run all operations, on the memory of their capture."""
        for func, places in self.steps:
            args, kwargs, found = over(lambda x: x.tensor() if isinstance(x, Place) else x, places)
            again = tensors_in(func(*args, **kwargs))
            for old, new in zip(tensors_in(found), again, strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@contextlib.contextmanager
def capture(graph: Graph, **options: Any) -> Iterator[None]:
    drawn = torch.get_rng_state()
    State.graph, State.thread = graph, threading.get_ident()
    try:
        yield
    finally:
        State.graph = None
        torch.set_rng_state(drawn)
        graph.end()


class Operations(TorchDispatchMode):
    """Operations without tensors of the GPU, such as those that make some."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


class Functions(TorchFunctionMode):
    """What C++ decides by its own idea of where a tensor is."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return move(func(*args, **kwargs), device)
        first = args[0] if args else None
        if func is Tensor.to:
            return to(*args, **kwargs)
        if func in (Tensor.cuda, Tensor.cpu):
            return move(first, name)
        if func is Tensor.pin_memory:
            return first.clone()
        if not any(isinstance(each, OnDevice) for each in args):
            return func(*args, **kwargs)
        if func is Tensor.tolist:
            return move(first, CPU).tolist()
        if func is Tensor.numpy:
            raise TypeError("can't convert a tensor on cuda to numpy")
        if func is Tensor.new_tensor:
            return move(torch.tensor(args[1], dtype=kwargs.get("dtype", first.dtype)), CUDA)
        if name.startswith("new_"):
            kwargs.setdefault("device", CUDA)
        if name == "one_hot":  # C++ makes the class numbers
            found = func(*inner_of(args), **kwargs)
            if graph := captured():
                graph.note(func, inner_of(args), kwargs, found)
            return OnDevice(found)
        if name == "where":
            kind = torch.result_type(*args[1:])
            args = [
                x if isinstance(x, Tensor) else torch.full((), x, dtype=kind, device=CUDA)
                for x in args
            ]
        return func(*args, **kwargs)


def to(tensor: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
    if args and isinstance(args[0], Tensor):
        args = (args[0].device, args[0].dtype, *args[1:])
    device, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
    if device is not None:
        moved = move(tensor, device, non_blocking)
        tensor, copy = moved, copy and moved is tensor
    options = {} if layout is None else {"memory_format": layout}
    return Tensor.to(tensor, dtype or tensor.dtype, copy=copy, **options)


def move(tensor: Tensor, device: Any, non_blocking: bool = False) -> Tensor:
    gpu = torch.device(device).type == "cuda"
    if gpu is isinstance(tensor, OnDevice):
        return tensor
    if gpu:
        return aten._to_copy(tensor, device=CUDA, non_blocking=non_blocking)
    wait("a copy to the CPU")
    return tensor.inner.clone()


class Generator(torch.Generator):
    def __new__(cls, device: Any = CPU) -> "Generator":
        made = super().__new__(cls)
        made.cuda = torch.device(device).type == "cuda"
        (State.generators.add if made.cuda else State.generators.discard)(made._cdata)
        return made

    def __init__(self, device: Any = CPU) -> None:
        pass

    device = property(lambda self: CUDA if self.cuda else CPU)


class Stream:
    """A stream or an event: all work is done when it is given out."""

    device = CUDA
    synchronize = staticmethod(wait)

    def __init__(self, *args: Any, **options: Any) -> None: ...
    def wait_stream(self, stream: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def record(self) -> None: ...
    def record_event(self) -> "Stream":
        return self

    def elapsed_time(self, end: Any) -> float:
        return 1.0

    def is_capturing(self) -> bool:
        return captured() is not None


@contextlib.contextmanager
def on_this_thread(stream: Any = None) -> Iterator[None]:
    """Within this block tensors of the GPU can be made; other threads enter it with a stream."""
    if getattr(State.active, "yes", False):
        yield
        return
    State.active.yes = True
    try:
        with Functions(), Operations():
            yield
    finally:
        State.active.yes = False


def forbid(mode: Any) -> None:
    State.forbidden = mode == 2


def by_device(grouped: Any) -> Any:
    """torch's grouping of tensors, with the device that they say they are on."""

    def group(*args: Any, **options: Any) -> Any:
        return {(CUDA, kind): value for (_, kind), value in grouped(*args, **options).items()}

    return group


@contextlib.contextmanager
def stand_in_cuda() -> Iterator[None]:
    """A GPU within this block."""
    clip, group = torch.nn.utils.clip_grad, "_group_tensors_by_device_and_dtype"
    replaced = {
        torch.cuda: {
            "_lazy_init": lambda: None,
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "set_device": lambda device: None,
            "get_device_name": lambda device=None: "stand-in",
            "get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8),
            "set_rng_state": lambda *args: None,
            "synchronize": lambda device=None: wait(),
            "current_stream": lambda device=None: Stream(),
            "set_sync_debug_mode": forbid,
            "is_bf16_supported": lambda *args: True,
            "mem_get_info": lambda device=None: (2**37, 2**37),
            "memory_reserved": lambda device=None: 0,
            "memory_allocated": lambda device=None: 0,
            "default_generators": (Generator(CUDA),),
            "stream": on_this_thread,
            "Stream": Stream,
            "Event": Stream,
            "CUDAGraph": Graph,
            "graph": capture,
        },
        torch.accelerator: {
            "synchronize": lambda device=None: wait(),
            "current_stream": lambda device=None: Stream(),
            "current_device_index": lambda: 0,
        },
        torch: {"Generator": Generator},
        Tensor: {"record_stream": lambda *args: None},
        Optimizer: {group: staticmethod(by_device(getattr(Optimizer, group)))},
        clip: {group: by_device(getattr(clip, group))},
    }
    with contextlib.ExitStack() as stack:
        for place, values in replaced.items():
            for name, value in values.items():
                stack.enter_context(mock.patch.object(place, name, value))
        future = torch.__future__
        before = future.get_overwrite_module_params_on_conversion()
        future.set_overwrite_module_params_on_conversion(True)  # weights change their class
        stack.callback(future.set_overwrite_module_params_on_conversion, before)
        stack.callback(forbid, 0)
        with on_this_thread():
            yield
