"""Someone's DDP script, written for torchrun: it knows nothing of Muster and runs unmodified."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device(f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu")
    print(f"rank {rank} of {world_size}, local rank {local_rank} of {os.environ['LOCAL_WORLD_SIZE']}", flush=True)

    torch.manual_seed(0)
    inputs = torch.randn(2048, 16)
    targets = (inputs**2).sum(dim=1, keepdim=True) / 16
    data = TensorDataset(inputs, targets)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64 // world_size, sampler=sampler)

    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    first = last = None
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            last = loss.detach()
            first = last if first is None else first
        dist.all_reduce(last, op=dist.ReduceOp.SUM)
        if rank == 0:
            print(f"epoch {epoch}: loss {last.item() / world_size:.4f}", flush=True)

    everyone = [None] * world_size
    dist.all_gather_object(everyone, sum(p.sum().item() for p in model.parameters()))
    assert len(set(everyone)) == 1, f"the replicas differ: {everyone}"
    assert last.item() / world_size < first.item(), "the loss did not fall"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
