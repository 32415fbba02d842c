"""DETR from the repository's own code in short: ResNet with frozen batch norms, transformer, SetCriterion with auxiliary losses, HungarianMatcher on the CPU with scipy's linear_sum_assignment, gradients clipped, two learning rates, nested tensors with masks."""
import torch, torch.nn as nn, torch.nn.functional as F, torchvision
from scipy.optimize import linear_sum_assignment
from torchvision.ops import FrozenBatchNorm2d, box_convert, generalized_box_iou
from measure import arguments, mark
args = arguments(batch=3, steps=3)
class DETR(nn.Module):
    def __init__(self, classes=20, queries=40, d=192):
        super().__init__(); r = torchvision.models.resnet34(weights=None, norm_layer=FrozenBatchNorm2d); self.backbone = torchvision.models._utils.IntermediateLayerGetter(r, {"layer4": "0"})
        for n, p in self.backbone.named_parameters():
            if "layer2" not in n and "layer3" not in n and "layer4" not in n: p.requires_grad_(False)
        self.proj, self.t, self.q, self.cls = nn.Conv2d(512, d, 1), nn.ModuleDict(dict(enc=nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 6, 768, 0.1), 3, enable_nested_tensor=False),
            dec=nn.ModuleList([nn.TransformerDecoderLayer(d, 6, 768, 0.1) for _ in range(3)]))), nn.Embedding(queries, d), nn.Linear(d, classes + 1)
        self.box, self.d = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 4)), d
    def position(self, mask):
        y, x = (~mask).cumsum(1, dtype=torch.float32), (~mask).cumsum(2, dtype=torch.float32)
        t = 10000 ** (2 * (torch.arange(self.d // 2, device=mask.device) // 2) / (self.d // 2)); px, py = x[..., None] / t, y[..., None] / t
        f = lambda p: torch.stack((p[..., 0::2].sin(), p[..., 1::2].cos()), 4).flatten(3); return torch.cat((f(py), f(px)), 3).permute(0, 3, 1, 2)
    def forward(self, images, mask):
        f = self.backbone(images)["0"]; m = F.interpolate(mask[None].float(), size=f.shape[-2:]).to(torch.bool)[0]; src = self.proj(f)
        pos = self.position(m).flatten(2).permute(2, 0, 1); s = src.flatten(2).permute(2, 0, 1)
        memory = self.t["enc"](s + pos, src_key_padding_mask=m.flatten(1)); x, out = self.q.weight.unsqueeze(1).repeat(1, len(images), 1), []
        for l in self.t["dec"]: x = l(x, memory, memory_key_padding_mask=m.flatten(1)); out.append(x.transpose(0, 1))
        h = torch.stack(out); c, b = self.cls(h), self.box(h).sigmoid()
        return {"pred_logits": c[-1], "pred_boxes": b[-1], "aux_outputs": [{"pred_logits": i, "pred_boxes": j} for i, j in zip(c[:-1], b[:-1])]}
@torch.no_grad()
def matcher(out, targets):
    bs, n = out["pred_logits"].shape[:2]; prob, boxes = out["pred_logits"].flatten(0, 1).softmax(-1), out["pred_boxes"].flatten(0, 1)
    ids, tb = torch.cat([v["labels"] for v in targets]), torch.cat([v["boxes"] for v in targets])
    C = 5 * torch.cdist(boxes, tb, p=1) - prob[:, ids] - 2 * generalized_box_iou(box_convert(boxes, "cxcywh", "xyxy"), box_convert(tb, "cxcywh", "xyxy")); C = C.view(bs, n, -1).cpu()
    return [(torch.as_tensor(i, dtype=torch.int64), torch.as_tensor(j, dtype=torch.int64)) for i, j in (linear_sum_assignment(c[k]) for k, c in enumerate(C.split([len(v["boxes"]) for v in targets], -1)))]
empty = torch.ones(21, device="cuda"); empty[-1] = 0.1
def losses(out, targets, num):
    ind = matcher(out, targets); b, s = torch.cat([torch.full_like(i, k) for k, (i, _) in enumerate(ind)]), torch.cat([i for i, _ in ind])
    y = torch.full(out["pred_logits"].shape[:2], 20, dtype=torch.int64, device="cuda")
    y[(b, s)] = torch.cat([t["labels"][j] for t, (_, j) in zip(targets, ind)])
    src, tgt = out["pred_boxes"][(b, s)], torch.cat([t["boxes"][j] for t, (_, j) in zip(targets, ind)]); card = (out["pred_logits"].argmax(-1) != 20).sum(1).float()
    return F.cross_entropy(out["pred_logits"].transpose(1, 2), y, empty) + 5 * F.l1_loss(src, tgt, reduction="none").sum() / num + 2 * (1 - torch.diag(generalized_box_iou(box_convert(src, "cxcywh",
        "xyxy"), box_convert(tgt, "cxcywh", "xyxy")))).sum() / num, card
model = DETR().cuda()
optimizer = torch.optim.AdamW([{"params": [p for n, p in model.named_parameters() if "backbone" not in n and p.requires_grad]},
    {"params": [p for n, p in model.named_parameters() if "backbone" in n and p.requires_grad], "lr": 1e-5}], lr=1e-4, weight_decay=1e-4)
def nested(n, seed):
    g = torch.Generator().manual_seed(seed)
    imgs = [torch.randn(3, int(h), int(w), generator=g) for h, w in torch.randint(160, 288, (n, 2), generator=g)]
    H, W = max(i.shape[1] for i in imgs), max(i.shape[2] for i in imgs); t, m = torch.zeros(n, 3, H, W), torch.ones(n, H, W, dtype=torch.bool)
    for k, i in enumerate(imgs): t[k, :, :i.shape[1], :i.shape[2]] = i; m[k, :i.shape[1], :i.shape[2]] = False
    return t.cuda(), m.cuda(), [dict(labels=torch.randint(0, 20, (k,), generator=g).cuda(), boxes=(torch.rand(k, 4, generator=g) * 0.4 + 0.2).cuda()) for k in torch.randint(1, 9, (n,), generator=g).tolist()]
for step in range(args.steps):
    x, m, t = nested(args.batch, step); out = model(x, m); num = max(1, sum(len(v["labels"]) for v in t)); loss, card = losses(out, t, num)
    loss = loss + sum(losses(a, t, num)[0] for a in out["aux_outputs"])
    if not torch.isfinite(loss): print("stopping"); break
    optimizer.zero_grad(); loss.backward(); torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1); optimizer.step(); print(loss.item(), card.mean().item())
model.eval()
with torch.no_grad():
    x, m, t = nested(2 * args.batch, 9); out = model(x, m); s, l = out["pred_logits"].softmax(-1)[..., :-1].max(-1); keep = s > 0.05
    print([b[k].cpu().shape for b, k in zip(out["pred_boxes"], keep)])
mark("evaluated")
