"""DeepLabV3 (ResNet-50) with its auxiliary head, poly schedule, a confusion matrix by bincount afterwards."""
import torch, torchvision
from torch.nn import functional as F
from measure import arguments, mark

args = arguments(batch=4)
model = torchvision.models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21, aux_loss=True).cuda()
optimizer = torch.optim.SGD([{"params": model.backbone.parameters()}, {"params": model.classifier.parameters(), "lr": 0.02}, {"params": model.aux_classifier.parameters(), "lr": 0.1}], lr=0.02, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=10, power=0.9)
for step in range(args.steps):
    x, y = torch.randn(args.batch, 3, 321, 321, device="cuda"), torch.randint(0, 21, (args.batch, 321, 321), device="cuda")
    y[:, :4] = 255
    out = model(x)
    loss = F.cross_entropy(out["out"], y, ignore_index=255) + 0.5 * F.cross_entropy(out["aux"], y, ignore_index=255)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
model.eval()
matrix = torch.zeros(21, 21, dtype=torch.int64, device="cuda")
with torch.inference_mode():
    p = model(x)["out"].argmax(1)
    keep = (y >= 0) & (y < 21)
    matrix += torch.bincount(21 * y[keep] + p[keep], minlength=21 ** 2).reshape(21, 21)
print("mIoU", (matrix.diag() / (matrix.sum(1) + matrix.sum(0) - matrix.diag()).clamp(min=1)).mean().item())
mark("eval")
