"""Data parallelism, a sharded optimizer and FSDP, as students write them in a course."""

import torch
import torch.distributed as dist


class DDP(torch.nn.Module):
    """A model whose gradients are averaged while the backward pass goes on."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.works = []
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, src=0)
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._average)

    def _average(self, parameter):
        parameter.grad /= dist.get_world_size()
        self.works.append(dist.all_reduce(parameter.grad, async_op=True))

    def forward(self, *inputs):
        return self.module(*inputs)

    def finish(self):
        """Wait for the averages."""
        for work in self.works:
            work.wait()
        self.works.clear()


class ShardedOptimizer(torch.optim.Optimizer):
    """An optimizer of which each rank has the state of some parameters only."""

    def __init__(self, parameters, kind, **options):
        self.kind = kind
        self.options = options
        self.own = None
        self.owners = {}
        super().__init__(parameters, options)
        own = [one for one, owner in self.owners.items() if owner == dist.get_rank()]
        self.own = kind(own, **options)

    def add_param_group(self, group):
        super().add_param_group(group)
        for parameter in group["params"]:
            self.owners[parameter] = len(self.owners) % dist.get_world_size()

    def step(self, closure=None):
        self.own.step()
        for parameter, owner in self.owners.items():
            dist.broadcast(parameter.data, src=owner)


class FSDP(torch.nn.Module):
    """A model of whose layers each rank keeps a part, and gathers the rest while it needs it."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.layers = [one for one in module.modules() if isinstance(one, torch.nn.Linear)]
        for layer in self.layers:
            layer.shape = layer.weight.shape
            dist.broadcast(layer.weight.data, src=0)
            rows = layer.weight.data.chunk(dist.get_world_size())
            layer.shard = torch.nn.Parameter(rows[dist.get_rank()].clone())
            del layer.weight
            layer.weight = None
            layer.register_forward_pre_hook(_gather)

    def forward(self, *inputs):
        return self.module(*inputs)

    def full_weights(self):
        """The whole weights, on every rank."""
        return [_Gathered.apply(layer.shard, layer.shape).detach() for layer in self.layers]


def _gather(layer, inputs):
    layer.weight = None
    vars(layer)["weight"] = _Gathered.apply(layer.shard, layer.shape)


class _Gathered(torch.autograd.Function):
    """All rows of a weight; backwards, the mean gradient of this rank's rows."""

    @staticmethod
    def forward(context, shard, shape):
        whole = shard.new_empty(shape)
        dist.all_gather_into_tensor(whole, shard.contiguous())
        return whole

    @staticmethod
    def backward(context, gradient):
        n = dist.get_world_size()
        own = gradient.new_empty(gradient.shape[0] // n, *gradient.shape[1:])
        # gloo's reduce_scatter, from a sum
        dist.all_reduce(gradient := gradient.contiguous().clone())
        own.copy_(gradient.chunk(n)[dist.get_rank()])
        return own / n, None
