"""Knowledge distillation: a frozen teacher in half precision, a student, feature hooks, KL at a temperature."""
import torch, torchvision
from torch.nn import functional as F
from measure import arguments

args = arguments(batch=32)
teacher = torchvision.models.regnet_y_3_2gf(weights=None).cuda().half().eval().requires_grad_(False)
student = torchvision.models.shufflenet_v2_x1_0(weights=None).cuda()
kept = {}
student.stage4.register_forward_hook(lambda m, i, o: kept.update(s=o))
teacher.trunk_output.register_forward_hook(lambda m, i, o: kept.update(t=o))
project = torch.nn.Conv2d(464, 1512, 1).cuda()
optimizer = torch.optim.AdamW([*student.parameters(), *project.parameters()], lr=1e-3)
for step in range(args.steps):
    x, y = torch.randn(args.batch, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (args.batch,), device="cuda")
    with torch.no_grad(): soft = teacher(x.half()).float()
    out = student(x)
    loss = F.cross_entropy(out, y) + 4 * F.kl_div(F.log_softmax(out / 2, 1), F.softmax(soft / 2, 1), reduction="batchmean") + F.mse_loss(project(kept["s"]), kept["t"].float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
