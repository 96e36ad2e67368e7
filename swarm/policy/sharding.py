"""One policy on several devices of a machine: every rank holds a share of weights, gradients and optimizer state.

Started by torchrun. Layers are gathered when they compute (FSDP2), completions are divided among the ranks, and their
gradients are added up: an update is that of one process, whatever the number of ranks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from swarm.errors import PolicyError
from swarm.policy.ranks import Ranks, T

ORDERS_TIMEOUT = timedelta(days=7)
"""How long a rank waits for the leader, which may have to wait for people or for verifiers."""


class ShardedRanks(Ranks):
    """This process as one of several, all with the same model."""

    def __init__(self) -> None:
        """Meet the others at the address that torchrun has put into the environment."""
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group(backend)
        self._objects = dist.new_group(backend="gloo", timeout=ORDERS_TIMEOUT)
        self._root: nn.Module | None = None
        self._layers: list[FSDPModule] = []
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def place(self, model: PreTrainedModel, device: torch.device) -> None:
        """Shard the model over the ranks' devices, layer by layer. Raises `PolicyError` for one without layers."""
        if device.type not in ("cpu", "cuda"):
            raise PolicyError(f"several processes need policy.device cpu or cuda, got {device.type}")
        layers = next((module for module in model.modules() if isinstance(module, nn.ModuleList)), None)
        if layers is None:
            raise PolicyError(f"{type(model).__name__} has no list of layers and cannot be shared among processes")
        mesh = init_device_mesh(device.type, (self.size,))
        self._layers = [fully_shard(layer, mesh=mesh) for layer in layers]
        root = fully_shard(_Root(model), mesh=mesh)
        for module in (root, *self._layers):
            # The default is the mean over ranks; each has its share of one sum. Gloo has no scaled sum but a plain one.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        self._root = root

    def forward(self, compute: Callable[[], Tensor]) -> Tensor:
        assert self._root is not None, "no model was placed"
        result: Tensor = self._root(compute)
        return result

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        assert isinstance(self._root, FSDPModule), "no model was placed"
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
        loads = [0] * self.size
        mine = []
        for item in sorted(range(len(costs)), key=lambda i: -costs[i]):  # the largest first, each to the least loaded
            least = loads.index(min(loads))
            loads[least] += costs[item]
            if least == self.rank:
                mine.append(item)
        return mine

    def most(self, count: int) -> int:
        return max(self.gather(count))

    def gather(self, value: T) -> list[T]:
        values: list[T | None] = [None] * self.size
        dist.all_gather_object(values, value, group=self._objects)
        return values  # type: ignore[return-value]  # every place is filled

    def broadcast(self, value: T) -> T:
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._objects, device=torch.device("cpu"))
        return box[0]


class _Root(nn.Module):
    """Gathers what lies outside the layers around any computation with the model, not only its own `forward`."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], Tensor]) -> Tensor:
        return compute()


@contextlib.contextmanager
def open_ranks() -> Iterator[Ranks]:
    """The ranks that torchrun started, or this process alone."""
    if not dist.is_torchelastic_launched() or int(os.environ["WORLD_SIZE"]) == 1:
        yield Ranks()
        return
    yield ShardedRanks()
    dist.destroy_process_group()  # not after a failure: others might wait for this rank, and torchrun ends them


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor of which each rank may hold a share; every rank has to ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """This rank's share of a whole `tensor`, cut as `parameter` is."""
    if isinstance(parameter, DTensor) and tensor.shape == parameter.shape:
        cut: Tensor = distribute_tensor(
            tensor.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
        )
        return cut
    return tensor
