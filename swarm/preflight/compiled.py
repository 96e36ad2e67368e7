"""What compiled layers keep of a forward pass for the gradient, found without a GPU.

torch traces a layer, forward and backward, and chooses what to keep and what to compute again. That choice is made here
as for a GPU, on tensors without content; kernels are not made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import GraphModule
from transformers import PreTrainedModel

Code = Callable[..., Any]


@contextmanager
def tracing() -> Iterator[Callable[[Code], Code]]:
    """Yields a function that returns code divided into what runs forward and backward as the compiler would, and run as
    it is. Afterwards nothing is left of the traces, of which torch makes only a few for each function."""
    from torch._C._dynamo.eval_frame import reset_code

    made: dict[Code, Code] = {}
    try:
        yield lambda code: made.setdefault(code, _traced(code))
    finally:
        for code in made:
            reset_code(code.__code__)


def _traced(code: Code) -> Code:
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    def divide(graph: GraphModule, inputs: object, **options: Any) -> tuple[GraphModule, GraphModule]:
        from torch._functorch.partitioners import min_cut_rematerialization_partition

        return min_cut_rematerialization_partition(graph, inputs, **options)

    backend = aot_autograd(
        fw_compiler=_as_it_is, bw_compiler=_as_it_is, partition_fn=divide, decompositions=select_decomp_table()
    )
    traced: Code = torch.compile(code, dynamic=True, backend=backend)
    return traced


@contextmanager
def counted(model: PreTrainedModel) -> Iterator[Callable[[], int]]:
    """Yields a function that returns the bytes kept for the gradient within the block; the model's own do not count."""
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in own:
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        yield lambda: sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def _as_it_is(graph: GraphModule, inputs: object) -> Any:
    from torch._functorch._aot_autograd.utils import make_boxed_func

    return make_boxed_func(graph.forward)
