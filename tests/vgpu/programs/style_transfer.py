"""Neural style transfer: VGG-19 features, Gram matrices, the image itself optimised by LBFGS."""
import torch, torchvision
from torch.nn import functional as F
from measure import arguments

args = arguments(batch=1)
vgg = torchvision.models.vgg19(weights=None).features.cuda().eval().requires_grad_(False)
for i, m in enumerate(vgg):
    if isinstance(m, torch.nn.ReLU): vgg[i] = torch.nn.ReLU(inplace=False)


def features(x):
    kept = []
    for i, m in enumerate(vgg):
        x = m(x)
        if i in (0, 5, 10, 19, 21, 28): kept.append(x)
    return kept


def gram(f): b, c, h, w = f.shape; f = f.view(b, c, -1); return f @ f.mT / (c * h * w)


content, style = (torch.rand(args.batch, 3, 384, 384, device="cuda") for _ in range(2))
with torch.no_grad(): wanted, grams = features(content)[4], [gram(f) for f in features(style)]
image = content.clone().requires_grad_()
optimizer = torch.optim.LBFGS([image], max_iter=4)
for step in range(args.steps):
    def closure():
        with torch.no_grad(): image.clamp_(0, 1)
        optimizer.zero_grad()
        f = features(image)
        loss = F.mse_loss(f[4], wanted) + 1e6 * sum(F.mse_loss(gram(a), g) for a, g in zip(f, grams))
        loss.backward()
        return loss
    optimizer.step(closure)
