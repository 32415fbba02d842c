"""A YOLOv5-like detector: CSP backbone, build_targets that matches labels to anchors by ratio and adds neighbouring cells, CIoU, objectness by gathered overlap, multi-scale training, warm-up, EMA, non_max_suppression by image with a time limit, as ultralytics/yolov5 writes them."""
import math, time, copy, torch, torch.nn as nn, torch.nn.functional as F
from torchvision.ops import nms
from torchvision.ops.ciou_loss import complete_box_iou_loss
from measure import arguments, mark
args = arguments(batch=6, steps=4)
nc, device = 12, torch.device("cuda")
anchors = torch.tensor([[[10, 13], [16, 30], [33, 23]], [[30, 61], [62, 45], [59, 119]], [[116, 90], [156, 198], [373, 326]]]).float()
class Conv(nn.Module):
    def __init__(self, i, o, k=1, s=1):
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(i, o, k, s, (k - 1) // 2, bias=False), nn.BatchNorm2d(o, eps=1e-3, momentum=0.03), nn.SiLU(inplace=True)
    def forward(self, x): return self.act(self.bn(self.conv(x)))
class Bottleneck(nn.Module):
    def __init__(self, c, add=True): super().__init__(); self.a, self.b, self.add = Conv(c, c), Conv(c, c, 3), add
    def forward(self, x): return x + self.b(self.a(x)) if self.add else self.b(self.a(x))
class C3(nn.Module):
    def __init__(self, i, o, n=1, add=True):
        super().__init__()
        self.a, self.b, self.c, self.m = Conv(i, o // 2), Conv(i, o // 2), Conv(o, o), nn.Sequential(*[Bottleneck(o // 2, add) for _ in range(n)])
    def forward(self, x): return self.c(torch.cat((self.m(self.a(x)), self.b(x)), 1))
class SPPF(nn.Module):
    def __init__(self, c): super().__init__(); self.a, self.b = Conv(c, c // 2), Conv(2 * c, c)
    def forward(self, x): x = self.a(x); y = F.max_pool2d(x, 5, 1, 2); z = F.max_pool2d(y, 5, 1, 2); return self.b(torch.cat([x, y, z, F.max_pool2d(z, 5, 1, 2)], 1))
class Yolo(nn.Module):
    def __init__(self, w=32):
        super().__init__()
        self.s1 = nn.Sequential(Conv(3, w, 6, 2), Conv(w, 2 * w, 3, 2), C3(2 * w, 2 * w), Conv(2 * w, 4 * w, 3, 2), C3(4 * w, 4 * w, 2))
        self.s2 = nn.Sequential(Conv(4 * w, 8 * w, 3, 2), C3(8 * w, 8 * w, 2))
        self.s3 = nn.Sequential(Conv(8 * w, 8 * w, 3, 2), C3(8 * w, 8 * w), SPPF(8 * w))
        self.u, self.n2, self.l, self.n1 = nn.Upsample(None, 2, "nearest"), C3(16 * w, 8 * w, 1, False), Conv(8 * w, 4 * w), C3(8 * w, 4 * w, 1, False)
        self.d1, self.d2, self.n3 = Conv(4 * w, 4 * w, 3, 2), Conv(8 * w, 8 * w, 3, 2), C3(16 * w, 8 * w, 1, False)
        self.heads = nn.ModuleList(nn.Conv2d(c, 3 * (nc + 5), 1) for c in (4 * w, 8 * w, 8 * w))
        self.register_buffer("anchors", anchors / torch.tensor([8, 16, 32]).view(3, 1, 1)); self.stride = (8, 16, 32)
    def forward(self, x):
        a = self.s1(x); b = self.s2(a); c = self.s3(b); m = self.n2(torch.cat([self.u(c), b], 1)); s = self.n1(torch.cat([self.u(self.l(m)), a], 1)); outs, z = [], []
        for i, f in enumerate((s, m, self.n3(torch.cat([self.d2(m), c], 1)))):
            y = self.heads[i](f); bs, _, ny, nx = y.shape; y = y.view(bs, 3, nc + 5, ny, nx).permute(0, 1, 3, 4, 2).contiguous(); outs.append(y)
            if not self.training:
                yv, xv = torch.meshgrid(torch.arange(ny, device=y.device, dtype=y.dtype), torch.arange(nx, device=y.device, dtype=y.dtype), indexing="ij")
                grid = torch.stack((xv, yv), 2).expand(1, 3, ny, nx, 2) - 0.5
                xy, wh, conf = y.sigmoid().split((2, 2, nc + 1), 4)
                z.append(torch.cat(((xy * 2 + grid) * self.stride[i], (wh * 2) ** 2 * (self.anchors[i] * self.stride[i]).view(1, 3, 1, 1, 2), conf), 4).view(bs, -1, nc + 5))
        return outs if self.training else torch.cat(z, 1)
def build_targets(p, targets, model):
    na, nt = 3, targets.shape[0]; tcls, tbox, indices, anch = [], [], [], []; gain = torch.ones(7, device=device); ai = torch.arange(na, device=device).float().view(na, 1).repeat(1, nt)
    targets = torch.cat((targets.repeat(na, 1, 1), ai[..., None]), 2); g = 0.5; off = torch.tensor([[0, 0], [1, 0], [0, 1], [-1, 0], [0, -1]], device=device).float() * g
    for i in range(3):
        a, shape = model.anchors[i], p[i].shape; gain[2:6] = torch.tensor(shape)[[3, 2, 3, 2]]; t = targets * gain
        if nt:
            r = t[..., 4:6] / a[:, None]; j = torch.max(r, 1 / r).max(2)[0] < 4.0; t = t[j]; gxy = t[:, 2:4]; gxi = gain[[2, 3]] - gxy
            j, k = ((gxy % 1 < g) & (gxy > 1)).T; l, m = ((gxi % 1 < g) & (gxi > 1)).T; j = torch.stack((torch.ones_like(j), j, k, l, m))
            t = t.repeat((5, 1, 1))[j]; offsets = (torch.zeros_like(gxy)[None] + off[:, None])[j]
        else: t, offsets = targets[0], 0
        bc, gxy, gwh, a_ = t.chunk(4, 1) if t.shape[1] == 8 else (t[:, :2], t[:, 2:4], t[:, 4:6], t[:, 6:])
        a_, (b, c) = a_.long().view(-1), bc.long().T; gij = (gxy - offsets).long(); gi, gj = gij.T
        indices.append((b, a_, gj.clamp_(0, shape[2] - 1), gi.clamp_(0, shape[3] - 1))); tbox.append(torch.cat((gxy - gij, gwh), 1)); anch.append(a[a_]); tcls.append(c)
    return tcls, tbox, indices, anch
def compute_loss(p, targets, model):
    lcls, lbox, lobj = (torch.zeros(1, device=device) for _ in range(3)); tcls, tbox, indices, anch = build_targets(p, targets, model)
    for i, pi in enumerate(p):
        b, a, gj, gi = indices[i]; tobj = torch.zeros(pi.shape[:4], dtype=pi.dtype, device=device)
        if b.shape[0]:
            pxy, pwh, _, pcls = pi[b, a, gj, gi].split((2, 2, 1, nc), 1)
            pbox = torch.cat((pxy.sigmoid() * 2 - 0.5, (pwh.sigmoid() * 2) ** 2 * anch[i]), 1).float()
            corners = lambda q: torch.cat((q[:, :2] - q[:, 2:] / 2, q[:, :2] + q[:, 2:] / 2), 1)
            iou = 1 - complete_box_iou_loss(corners(pbox), corners(tbox[i])); lbox += (1.0 - iou).mean()
            tobj[b, a, gj, gi] = iou.detach().clamp(0).type(tobj.dtype); t = torch.full_like(pcls, 0.0, device=device)
            t[range(len(b)), tcls[i]] = 1.0; lcls += F.binary_cross_entropy_with_logits(pcls, t)
        lobj += F.binary_cross_entropy_with_logits(pi[..., 4], tobj) * (4.0, 1.0, 0.4)[i]
    return (lbox * 0.05 + lobj + lcls * 0.5) * p[0].shape[0], torch.cat((lbox, lobj, lcls)).detach()
def non_max_suppression(prediction, conf_thres=0.001, iou_thres=0.6, max_det=300):
    xc = prediction[..., 4] > conf_thres; out = [torch.zeros((0, 6), device=prediction.device)] * len(prediction); start = time.time()
    for xi, x in enumerate(prediction):
        x = x[xc[xi]]
        if not x.shape[0]: continue
        x[:, 5:] *= x[:, 4:5]; box = torch.cat((x[:, :2] - x[:, 2:4] / 2, x[:, :2] + x[:, 2:4] / 2), 1)
        i, j = (x[:, 5:] > conf_thres).nonzero(as_tuple=False).T; x = torch.cat((box[i], x[i, 5 + j, None], j[:, None].float()), 1); n = x.shape[0]
        if not n: continue
        x = x[x[:, 4].argsort(descending=True)[:3000]]; i = nms(x[:, :4] + x[:, 5:6] * 7680, x[:, 4], iou_thres)[:max_det]; out[xi] = x[i]
        if time.time() - start > 10: break
    return out
class ModelEMA:
    def __init__(self, model): self.ema, self.n = copy.deepcopy(model).eval().requires_grad_(False), 0
    def update(self, model):
        self.n += 1; d, msd = 0.9999 * (1 - math.exp(-self.n / 2000)), model.state_dict()
        for k, v in self.ema.state_dict().items():
            if v.dtype.is_floating_point: v *= d; v += (1 - d) * msd[k].detach()
def labels(n):
    k = torch.randint(1, 9, (n,), generator=torch.Generator().manual_seed(n))
    return torch.cat([torch.cat((torch.full((int(c), 1), i), torch.randint(0, nc, (int(c), 1)), torch.rand(int(c), 2) * 0.8 + 0.1, torch.rand(int(c), 2) * 0.4 + 0.02), 1) for i, c in enumerate(k)]).to(device)
model = Yolo().to(device); g0, g1 = [p for p in model.parameters() if p.ndim > 1], [p for p in model.parameters() if p.ndim <= 1]
optimizer = torch.optim.SGD(g1, lr=0.01, momentum=0.937, nesterov=True); optimizer.add_param_group({"params": g0, "weight_decay": 5e-4})
ema, scaler, mloss = ModelEMA(model), torch.amp.GradScaler("cuda"), torch.zeros(3, device=device)
for ni in range(args.steps):
    imgs = (torch.randint(0, 256, (args.batch, 3, 288, 288), dtype=torch.uint8).to(device, non_blocking=True).float() / 255); sz = (288, 352, 224, 320)[ni % 4]
    if sz != 288: imgs = F.interpolate(imgs, size=(sz, sz), mode="bilinear", align_corners=False)
    with torch.autocast("cuda"): loss, items = compute_loss(model(imgs), labels(args.batch), model)
    scaler.scale(loss).backward(); scaler.unscale_(optimizer); torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0); scaler.step(optimizer)
    scaler.update(); optimizer.zero_grad(); ema.update(model); mloss = (mloss * ni + items) / (ni + 1)
    print(*mloss.tolist(), f"{torch.cuda.memory_reserved() / 1e9:.3g}G")
half = ema.ema.half()
with torch.no_grad(): print([len(x) for x in non_max_suppression(half(torch.rand(2 * args.batch, 3, 288, 288, device=device).half()).float())])
mark("validated")
