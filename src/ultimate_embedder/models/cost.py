"""What a forward costs, operation by operation: floating-point operations, bytes, kernel launches. Computes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

WITHOUT_KERNEL = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh", "detach")


@dataclass(frozen=True)
class Operation:
    """One kernel: what it computes, and what it reads and writes if nothing is in a cache."""

    name: str
    flops: int
    moved_bytes: int


@dataclass(frozen=True)
class ForwardCost:
    """The kernels of a forward, in their order."""

    operations: tuple[Operation, ...]

    @property
    def calls(self) -> int:
        """Kernels that the host launches."""
        return len(self.operations)

    @property
    def flops(self) -> int:
        """Floating-point operations of matrix products and attention."""
        return sum(operation.flops for operation in self.operations)

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return sum(operation.moved_bytes for operation in self.operations)

    def with_more(self, longer: ForwardCost, times: int) -> ForwardCost:
        """The same with what `longer` has more than this, so many times: the kernels of further layers."""
        more = Counter(longer.operations) - Counter(self.operations)
        return ForwardCost(self.operations + tuple(more.elements()) * times)

    def seconds(self, flops_per_second: float, bytes_per_second: float, launch_seconds: float = 0.0) -> float:
        """Roofline: each kernel takes what its arithmetic or its bytes take, whichever is longer, and its launch."""
        return sum(
            max(each.flops / flops_per_second, each.moved_bytes / bytes_per_second) + launch_seconds
            for each in self.operations
        )


def count_forward(make: Callable[[], Callable[[], Any]]) -> ForwardCost:
    """Count the kernels of the function that `make` returns; both run on tensors without bytes.

    `make` builds what is not counted: the model and its inputs.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    counter = operation_counter()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode(False), torch.no_grad():
        run = make()
        with counter:
            run()
    return ForwardCost(tuple(counter.operations))


def operation_counter() -> Any:
    """A dispatch mode of torch that collects the kernels of what runs within it in `operations`."""
    from torch.utils._python_dispatch import TorchDispatchMode

    untyped_mode: Any = TorchDispatchMode

    class OperationCounter(untyped_mode):  # type: ignore[misc]
        """Collects every operation that launches a kernel."""

        def __init__(self) -> None:
            super().__init__()
            self.operations: list[Operation] = []

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            operation = _operation(function, args, kwargs or {}, result)
            if operation is not None:
                self.operations.append(operation)
            return result

        def ignore(self, tensor: Any) -> None:
            """Nothing: what exists before launches no kernel."""

    return OperationCounter()


def _operation(function: Any, args: Any, kwargs: dict[str, Any], result: Any) -> Operation | None:
    """The kernel of a call; None for views and for memory that is only allocated."""
    from torch.utils._pytree import tree_leaves

    inputs, outputs = _tensors(tree_leaves((args, kwargs))), _tensors(tree_leaves(result))
    name = function.overloadpacket.__name__
    if not outputs or name in WITHOUT_KERNEL:
        return None
    if not function._schema.is_mutable and _is_view(inputs, outputs):
        return None
    moved = sum(tensor.numel() * tensor.element_size() for tensor in (*inputs, *outputs))
    return Operation(name, _flops(function, args, kwargs, result), moved)


def _tensors(values: Sequence[Any]) -> list[Any]:
    import torch

    return [value for value in values if isinstance(value, torch.Tensor)]


def _is_view(inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    owned = {tensor.untyped_storage()._cdata for tensor in inputs}
    return all(tensor.untyped_storage()._cdata in owned for tensor in outputs)


def _flops(function: Any, args: Any, kwargs: dict[str, Any], result: Any) -> int:
    from torch.utils.flop_counter import flop_registry

    if "scaled_dot_product" in function.overloadpacket.__name__:
        query, key = args[0], args[1]
        rows, heads, queries, dim = query.shape
        return int(4 * rows * heads * queries * key.shape[2] * dim)  # scores, and their sum over values
    count = flop_registry.get(function.overloadpacket)
    return int(count(*args, **kwargs, out_val=result)) if count is not None else 0
