"""CycleGAN as its repository trains: two generators and two PatchGAN discriminators, an image pool that returns older fakes at random, identity losses, requires_grad switched off for the discriminators, linear learning rate decay, weights initialised by apply, test-time generation."""
import itertools, random, torch, torch.nn as nn
from measure import arguments, mark
args = arguments(batch=1, steps=3)
class ImagePool:
    def __init__(self, size): self.size, self.images = size, []
    def query(self, images):
        out = []
        for image in images:
            image = torch.unsqueeze(image.data, 0)
            if len(self.images) < self.size: self.images.append(image); out.append(image)
            elif random.uniform(0, 1) > 0.5: i = random.randint(0, self.size - 1); old = self.images[i].clone(); self.images[i] = image; out.append(old)
            else: out.append(image)
        return torch.cat(out, 0)
class ResnetBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.c = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(d, d, 3), nn.InstanceNorm2d(d), nn.ReLU(True), nn.ReflectionPad2d(1), nn.Conv2d(d, d, 3), nn.InstanceNorm2d(d))
    def forward(self, x): return x + self.c(x)
def generator(f=32):
    return nn.Sequential(nn.ReflectionPad2d(3), nn.Conv2d(3, f, 7), nn.InstanceNorm2d(f), nn.ReLU(True), nn.Conv2d(f, 2 * f, 3, 2, 1), nn.InstanceNorm2d(2 * f), nn.ReLU(True),
        nn.Conv2d(2 * f, 4 * f, 3, 2, 1), nn.InstanceNorm2d(4 * f), nn.ReLU(True), *[ResnetBlock(4 * f) for _ in range(6)], nn.ConvTranspose2d(4 * f, 2 * f, 3, 2, 1, output_padding=1),
        nn.InstanceNorm2d(2 * f), nn.ReLU(True), nn.ConvTranspose2d(2 * f, f, 3, 2, 1, output_padding=1), nn.InstanceNorm2d(f), nn.ReLU(True), nn.ReflectionPad2d(3), nn.Conv2d(f, 3, 7), nn.Tanh())
def discriminator(f=48):
    return nn.Sequential(nn.Conv2d(3, f, 4, 2, 1), nn.LeakyReLU(0.2, True), *[m for i, o, s in ((f, 2 * f, 2), (2 * f, 4 * f, 2), (4 * f, 8 * f, 1)) for m in (nn.Conv2d(i, o, 4, s, 1),
        nn.InstanceNorm2d(o), nn.LeakyReLU(0.2, True))], nn.Conv2d(8 * f, 1, 4, 1, 1))
def init(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)): nn.init.normal_(m.weight.data, 0.0, 0.02); nn.init.constant_(m.bias.data, 0.0)
class GANLoss(nn.Module):
    def __init__(self): super().__init__(); self.register_buffer("real", torch.tensor(1.0)); self.register_buffer("fake", torch.tensor(0.0)); self.loss = nn.MSELoss()
    def __call__(self, p, real): return self.loss(p, (self.real if real else self.fake).expand_as(p))
class CycleGAN:
    def __init__(self):
        self.A, self.B, self.DA, self.DB = (m.cuda().apply(init) for m in (generator(), generator(), discriminator(), discriminator()))
        self.poolA, self.poolB, self.gan, self.l1 = ImagePool(3), ImagePool(3), GANLoss().cuda(), nn.L1Loss()
        self.og, self.od = torch.optim.Adam(itertools.chain(self.A.parameters(), self.B.parameters()), 2e-4, betas=(0.5, 0.999)), torch.optim.Adam(itertools.chain(self.DA.parameters(), self.DB.parameters()), 2e-4, betas=(0.5, 0.999))
        self.plans = [torch.optim.lr_scheduler.LambdaLR(o, lambda e: 1.0 - max(0, e - 1) / 3) for o in (self.og, self.od)]
    def set_requires_grad(self, nets, on):
        for n in nets:
            for p in n.parameters(): p.requires_grad = on
    def optimize_parameters(self, a, b):
        self.real_A, self.real_B = a.cuda(), b.cuda(); self.fake_B = self.A(self.real_A); self.rec_A = self.B(self.fake_B)
        self.fake_A = self.B(self.real_B); self.rec_B = self.A(self.fake_A)
        self.set_requires_grad([self.DA, self.DB], False); self.og.zero_grad(); self.idt_A, self.idt_B = self.A(self.real_B), self.B(self.real_A)
        self.loss_G = self.gan(self.DA(self.fake_B), True) + self.gan(self.DB(self.fake_A), True) + 10 * (self.l1(self.rec_A, self.real_A) + self.l1(self.rec_B, self.real_B)) + 5 * (self.l1(self.idt_A, self.real_B) + self.l1(self.idt_B, self.real_A))
        self.loss_G.backward(); self.og.step()
        self.set_requires_grad([self.DA, self.DB], True); self.od.zero_grad()
        for D, real, fake in ((self.DA, self.real_B, self.poolB.query(self.fake_B)), (self.DB, self.real_A, self.poolA.query(self.fake_A))):
            ((self.gan(D(real), True) + self.gan(D(fake.detach()), False)) * 0.5).backward()
        self.od.step()
random.seed(1); model = CycleGAN()
for epoch in range(2):
    for i in range(args.steps): model.optimize_parameters(torch.randn(args.batch, 3, 160, 160), torch.randn(args.batch, 3, 160, 160)); print(float(model.loss_G))
    for p in model.plans: p.step()
model.A.eval()
with torch.no_grad(): print(model.A(torch.randn(1, 3, 256, 256).cuda()).cpu().shape)
mark("tested")
