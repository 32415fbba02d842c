"""A RetinaNet written from the paper on a torchvision backbone: FPN by hand, anchors of all levels, targets assigned by overlap with lists of boxes of different lengths, focal and GIoU losses over positives, NMS by image in evaluation, mAP-like counts on the CPU."""
import torch, torch.nn as nn, torch.nn.functional as F, torchvision
from torchvision.ops import batched_nms, box_iou, clip_boxes_to_image, generalized_box_iou_loss, sigmoid_focal_loss
from measure import arguments, mark
args = arguments(batch=4, steps=4)
K, A, size = 15, 9, 256
class Detector(nn.Module):
    def __init__(self):
        super().__init__(); r = torchvision.models.resnet18(weights=None)
        self.stem, self.layers = nn.Sequential(r.conv1, r.bn1, r.relu, r.maxpool), nn.ModuleList([r.layer1, r.layer2, r.layer3, r.layer4])
        self.lateral, self.out = nn.ModuleList([nn.Conv2d(c, 128, 1) for c in (128, 256, 512)]), nn.ModuleList([nn.Conv2d(128, 128, 3, padding=1) for _ in range(3)])
        self.p6, self.p7 = nn.Conv2d(512, 128, 3, 2, 1), nn.Conv2d(128, 128, 3, 2, 1)
        head = lambda o: nn.Sequential(*[m for _ in range(3) for m in (nn.Conv2d(128, 128, 3, padding=1), nn.GroupNorm(16, 128), nn.ReLU(inplace=True))], nn.Conv2d(128, o, 3, padding=1))
        self.cls, self.box = head(A * K), head(A * 4); nn.init.constant_(self.cls[-1].bias, -4.6)
    def forward(self, x):
        c = []; x = self.stem(x)
        for l in self.layers: x = l(x); c.append(x)
        p = [l(f) for l, f in zip(self.lateral, c[1:])]
        for i in (1, 0): p[i] = p[i] + F.interpolate(p[i + 1], size=p[i].shape[-2:], mode="nearest")
        p = [o(f) for o, f in zip(self.out, p)]; p6 = self.p6(c[-1]); p += [p6, self.p7(F.relu(p6))]
        flat = lambda t, n: t.permute(0, 2, 3, 1).reshape(t.shape[0], -1, n)
        return torch.cat([flat(self.cls(f), K) for f in p], 1), torch.cat([flat(self.box(f), 4) for f in p], 1), self.anchors(p)
    def anchors(self, p):
        out = []
        for f, stride in zip(p, (8, 16, 32, 64, 128)):
            h, w = f.shape[-2:]; cy, cx = torch.meshgrid((torch.arange(h, device=f.device) + 0.5) * stride, (torch.arange(w, device=f.device) + 0.5) * stride, indexing="ij")
            wh = torch.tensor([[4 * stride * s * r ** 0.5, 4 * stride * s / r ** 0.5] for s in (1, 1.26, 1.59) for r in (0.5, 1, 2)], device=f.device)
            c = torch.stack([cx, cy], -1).view(-1, 1, 2)
            out.append(torch.cat([c - wh / 2, c + wh / 2], -1).view(-1, 4))
        return torch.cat(out)
def decode(a, d): wh, c = a[:, 2:] - a[:, :2], (a[:, 2:] + a[:, :2]) / 2; c, wh = c + d[..., :2] * wh, wh * d[..., 2:].clamp(max=4).exp(); return torch.cat([c - wh / 2, c + wh / 2], -1)
def loss_of(cls, box, anchors, targets):
    total = 0
    for z, d, t in zip(cls, box, targets):
        iou = box_iou(t["boxes"], anchors); best, which = iou.max(0); which[best < 0.4] = -1; which[(best >= 0.4) & (best < 0.5)] = -2
        best_of_box = iou.argmax(1); which[best_of_box] = torch.arange(len(t["boxes"]), device=which.device)
        pos = torch.where(which >= 0)[0]; valid = which != -2; y = torch.zeros_like(z); y[pos, t["labels"][which[pos]]] = 1.0
        total = total + sigmoid_focal_loss(z[valid], y[valid], reduction="sum") / max(1, len(pos)) + generalized_box_iou_loss(decode(anchors[pos], d[pos]), t["boxes"][which[pos]], reduction="sum") / max(1, len(pos))
    return total / len(targets)
def targets(n):
    out = []
    for i in range(n):
        k = 2 + i % 5; xy, wh = torch.rand(k, 2) * 160, torch.rand(k, 2) * 80 + 12
        out.append(dict(boxes=torch.cat([xy, xy + wh], 1).cuda(), labels=torch.randint(0, K, (k,)).cuda()))
    return out
model = Detector().cuda()
opt = torch.optim.SGD([dict(params=[p for n, p in model.named_parameters() if "stem" in n or "layers" in n], lr=1e-3),
    dict(params=[p for n, p in model.named_parameters() if "stem" not in n and "layers" not in n])], lr=1e-2, momentum=0.9, weight_decay=1e-4)
for step in range(args.steps):
    x = torch.randn(args.batch, 3, size, size + 32 * (step % 2), device="cuda"); loss = loss_of(*model(x), targets(args.batch)); opt.zero_grad()
    loss.backward(); torch.nn.utils.clip_grad_norm_(model.parameters(), 10); opt.step(); print(loss.item())
model.eval(); found = 0
with torch.no_grad():
    for _ in range(2):
        cls, box, anchors = model(torch.randn(args.batch, 3, size, size, device="cuda"))
        for z, d in zip(cls.sigmoid(), box):
            score, label = z.max(-1); top, i = score.topk(min(1000, len(score))); keep = top > 0.001; i = i[keep]
            b = clip_boxes_to_image(decode(anchors[i], d[i]), (size, size)); k = batched_nms(b, top[keep], label[i], 0.5)[:100]; found += len(k)
            r = b[k].cpu().numpy()
print("kept", found); mark("evaluated")
