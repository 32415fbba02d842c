"""A run that watches its GPU: pynvml's memory, utilisation, temperature, power and processes, torch.cuda's own questions, then trains."""
import os
import pynvml, torch
from torch import nn
from measure import arguments, mark

args = arguments(batch=2048)
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
before = pynvml.nvmlDeviceGetMemoryInfo(handle)
print(pynvml.nvmlDeviceGetName(handle), pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetCount(), before.total >> 20, pynvml.nvmlDeviceGetUUID(handle)[:4])
model = nn.Sequential(nn.Linear(4096, 8192), nn.ReLU(), nn.Linear(8192, 4096)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(args.steps):
    model(torch.randn(args.batch, 4096, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
after = pynvml.nvmlDeviceGetMemoryInfo(handle)
mine = [p for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle) if p.pid == os.getpid()]
print("grown by MiB", (after.used - before.used) >> 20, "mine", [p.usedGpuMemory and p.usedGpuMemory >> 20 for p in mine])
print("used" if after.used > torch.cuda.memory_reserved() else "NVML KNOWS LESS THAN THE ALLOCATOR", pynvml.nvmlDeviceGetUtilizationRates(handle).gpu, pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU), pynvml.nvmlDeviceGetPowerUsage(handle) // 1000)
print(torch.cuda.utilization(), torch.cuda.temperature(), torch.cuda.get_device_capability(), torch.cuda.get_device_properties(0), torch.cuda.device_memory_used() >> 30, torch.cuda.list_gpu_processes().count("process"))
pynvml.nvmlShutdown()
