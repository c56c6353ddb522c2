"""FSDP2 on a mesh, a checkpoint in parts, and the end without destroy_process_group."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def model_of(mesh):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = model_of(mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        optimizer.step()
        optimizer.zero_grad()
    dcp.save(get_model_state_dict(model), checkpoint_id="parts")
    other = model_of(mesh)
    state = get_model_state_dict(other)
    dcp.load(state, checkpoint_id="parts")
    torch.testing.assert_close(other(torch.ones(1, 8)), model(torch.ones(1, 8)))
    print(f"loss {loss.item():.5f} norm {norm.item():.5f}")


if __name__ == "__main__":
    main()
