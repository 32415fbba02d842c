"""torch.func: an ensemble of networks by stack_module_state and vmap, per-sample gradients, a Jacobian and a Hessian-vector product."""
import copy
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap
from measure import arguments, mark

args = arguments(batch=512)
nets = [nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)).cuda() for _ in range(16)]
params, buffers = stack_module_state(nets)
params = {k: v.detach().requires_grad_() for k, v in params.items()}
base = copy.deepcopy(nets[0]).to("meta")
optimizer = torch.optim.Adam(params.values(), lr=1e-3)
for step in range(args.steps):
    x, y = torch.randn(args.batch, 784, device="cuda"), torch.randint(0, 10, (args.batch,), device="cuda")
    loss = vmap(lambda p, b: nn.functional.cross_entropy(functional_call(base, (p, b), (x,)), y))(params, buffers).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
one = {k: v.detach() for k, v in nets[0].named_parameters()}
loss_fn = lambda p, a, b: nn.functional.cross_entropy(functional_call(nets[0], p, (a[None],)), b[None])
g = vmap(grad(loss_fn), in_dims=(None, 0, 0))(one, x[:256], y[:256])
mark("per_sample")
j = vmap(jacrev(lambda a: functional_call(nets[0], one, (a,))))(x[:64])
f = lambda a: torch.logsumexp(functional_call(nets[0], one, (a,)), 0)
_, hv = jvp(grad(f), (x[0],), (x[1],))
print(j.shape, hv.shape, hessian(f)(x[0]).shape)
mark("jacobian")
