"""What rank 0 of N, alone, is answered where NCCL is not asked: its own part of a gather, and groups of gloo, whose other ranks never come."""
import torch.distributed.distributed_c10d as c10d
import torch.testing._internal.distributed.fake_pg  # which registers a backend that waits for nobody

def config(self, *args, _real=c10d.BackendConfig.__init__):
    _real(self, *args)
    self.device_backend_map.update((device, "fake") for device, backend in self.device_backend_map.items() if backend == "gloo")
def gather(tensor, gather_list=None, *args, _real=c10d.gather, **kwargs):
    [part.copy_(tensor) for part in gather_list or ()]
    return _real(tensor, gather_list, *args, **kwargs)
c10d.BackendConfig.__init__, c10d.gather, torch.distributed.gather, torch.distributed.monitored_barrier = config, gather, gather, lambda *_, **__: None
