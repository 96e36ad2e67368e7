"""The processes that train one policy together: a single one, or several if torchrun started them.

Every rank then holds a shard of weights, gradients and optimizer state. Layers are gathered when they compute (FSDP2),
completions are divided among the ranks, and gradients are summed: an update does not depend on the number of ranks. An
encoder of images or sounds is frozen, and whole on every rank: each encodes what its own rows show, so that passes of
encoders differ in number.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from swarm.errors import PolicyError
from swarm.policy.media.features import encoder_parameters, is_encoder_trained

T = TypeVar("T")
ORDERS_TIMEOUT = timedelta(days=7)
"""Time that a rank waits for the leader, which may itself wait for people or verifiers."""


class Ranks:
    """A single process with the whole policy.

    With several ranks, all must call these methods in the same order, because they move weights, gradients or objects
    between ranks.
    """

    rank = 0
    """Index of this process; 0 is the leader."""
    size = 1

    def in_turn(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 before the others, which then find its downloads and files."""
        return work()

    def for_another(self) -> Ranks:
        """The same processes for another model: each `Ranks` places one model."""
        return self

    def place(self, model: PreTrainedModel, device: torch.device) -> None:
        """Move this rank's shard of the weights to its device."""
        model.to(device)

    def forward(self, compute: Callable[[], T]) -> T:
        """Return the result of `compute`, which runs a forward pass; a backward pass may follow."""
        return compute()

    def gathered(self) -> contextlib.AbstractContextManager[None]:
        """Within the block, every rank has all weights: forward passes without gradient need no other rank."""
        return contextlib.nullcontext()

    def share(self, costs: Sequence[int]) -> list[int]:
        """Indices of this rank's items; the division balances costs."""
        return list(range(len(costs)))

    def most(self, count: int) -> int:
        """The largest `count` that any rank has."""
        return count

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, by rank."""
        return [value]

    def broadcast(self, value: T) -> T:
        """The leader's value."""
        return value

    def whole(self, tensor: Tensor) -> Tensor:
        """The complete parameter, gradient or optimizer state of which this rank holds a shard."""
        return tensor

    def cut(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        """This rank's shard of a complete `tensor` that belongs to a parameter."""
        return tensor


class ShardedRanks(Ranks):
    """One of several processes with the same model."""

    def __init__(self) -> None:
        """Connect to the other ranks at torchrun's address in the environment."""
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        local_rank = int(os.environ["LOCAL_RANK"])
        if local_rank < torch.cuda.device_count():
            torch.cuda.set_device(local_rank)
        dist.init_process_group(backend)
        self._objects = dist.new_group(backend="gloo", timeout=ORDERS_TIMEOUT)
        self._root: FSDPModule | None = None
        self._layers: list[FSDPModule] = []
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def in_turn(self, work: Callable[[], T]) -> T:
        """Raises `PolicyError` on the other ranks when rank 0 failed."""
        if self.rank > 0 and not self.broadcast(False):
            raise PolicyError("rank 0 could not load the policy")
        result = work()
        if self.rank == 0:
            self.broadcast(True)
        return result

    def for_another(self) -> ShardedRanks:
        """A copy without a model, over the same connections."""
        other = copy.copy(self)
        other._root, other._layers = None, []
        return other

    def place(self, model: PreTrainedModel, device: torch.device) -> None:
        """Shard the model over the ranks' devices, layer by layer.

        Raises `PolicyError` for one without layers, or whose encoder is trained.
        """
        if device.type not in ("cpu", "cuda"):
            raise PolicyError(f"several processes need policy.device cpu or cuda, got {device.type}")
        if device.type == "cuda" and self.size > (num_gpus := torch.cuda.device_count()):
            raise PolicyError(f"--nproc-per-node must be at most {num_gpus}, the GPUs of this machine, got {self.size}")
        if is_encoder_trained(model):
            raise PolicyError("policy.encoder must be frozen with several processes, got trained")
        decoder = model.get_decoder()
        layers = next((module for module in decoder.modules() if isinstance(module, nn.ModuleList)), None)
        if layers is None:
            raise PolicyError(f"{type(model).__name__} has no list of layers and cannot be shared among processes")
        mesh = init_device_mesh(device.type, (self.size,))
        self._layers = [fully_shard(layer, mesh=mesh) for layer in layers]
        encoder = encoder_parameters(model)
        self._root = fully_shard(_Root(model), mesh=mesh, ignored_params=set(encoder))
        for parameter in encoder:
            parameter.data = parameter.data.to(device)
        for module in (self._root, *self._layers):
            # The default is the mean over ranks, but each rank has a part of one sum. Gloo supports only the plain sum.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        self.forward(lambda: None)  # FSDP takes the first module that computes as the root

    def forward(self, compute: Callable[[], T]) -> T:
        """Gather each layer while it computes; every rank must run the same number of passes."""
        assert isinstance(self._root, _Root), "no model was placed"
        result: T = self._root(compute)
        if not _has_gradient(result):  # no backward pass will reshard it
            self._root.reshard()
        return result

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Gather the whole model, in float32, until the end of the block."""
        assert self._root is not None, "no model was placed"
        try:
            for module in (self._root, *self._layers):
                module.set_reshard_after_forward(False, recurse=False)
                module.unshard()
            yield
        finally:
            for module in (self._root, *self._layers):
                module.set_reshard_after_forward(module is not self._root, recurse=False)
                module.reshard()

    def share(self, costs: Sequence[int]) -> list[int]:
        """Largest first, each to the least loaded rank: every rank computes the same division."""
        loads = [0] * self.size
        mine = []
        for item in sorted(range(len(costs)), key=lambda i: -costs[i]):
            least = loads.index(min(loads))
            loads[least] += costs[item]
            if least == self.rank:
                mine.append(item)
        return sorted(mine)

    def most(self, count: int) -> int:
        """The largest of all ranks' counts."""
        return max(self.gather(count))

    def gather(self, value: T) -> list[T]:
        """Every rank gets all values; they are pickled, which is safe among processes of one node."""
        values: list[T | None] = [None] * self.size
        dist.all_gather_object(values, value, group=self._objects)
        return values  # type: ignore[return-value]  # every entry is filled

    def broadcast(self, value: T) -> T:
        """Wait for the leader's value, up to `ORDERS_TIMEOUT`."""
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._objects, device=torch.device("cpu"))
        return box[0]

    def whole(self, tensor: Tensor) -> Tensor:
        """Assemble a `DTensor` from the ranks' shards or partial sums."""
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def cut(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        """Shard like the parameter; a tensor of another shape, such as a step count, stays whole on every rank."""
        if not isinstance(parameter, DTensor) or tensor.shape != parameter.shape:
            return tensor
        share: Tensor = distribute_tensor(
            tensor.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
        )
        return share


class _Root(nn.Module):
    """Gathers the weights outside the layers for any computation with the model, not only its own `forward`."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], T]) -> T:
        return compute()


def _has_gradient(result: object) -> bool:
    if isinstance(result, tuple):
        return any(_has_gradient(part) for part in result)
    return isinstance(result, Tensor) and result.requires_grad


@contextlib.contextmanager
def open_ranks() -> Iterator[Ranks]:
    """The processes that torchrun started, or this one alone."""
    if not dist.is_torchelastic_launched() or int(os.environ["WORLD_SIZE"]) == 1:
        yield Ranks()
        return
    yield ShardedRanks()
    dist.destroy_process_group()  # not after a failure: torchrun ends the others, which may be waiting for this one
