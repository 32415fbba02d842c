"""nnU-Net's network builder (dynamic_network_architectures) in three dimensions with deep supervision and its Dice loss, fp16."""
import torch
from dynamic_network_architectures.architectures.unet import PlainConvUNet
from nnunetv2.training.loss.compound_losses import DC_and_CE_loss
from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss
from torch import nn
from measure import arguments

args = arguments(batch=2)
model = PlainConvUNet(1, 4, (32, 64, 128, 256), nn.Conv3d, 3, [1, 2, 2, 2], 2, 3, 2, conv_bias=True, norm_op=nn.InstanceNorm3d, norm_op_kwargs={"eps": 1e-5, "affine": True}, nonlin=nn.LeakyReLU, nonlin_kwargs={"inplace": True}, deep_supervision=True).cuda()
loss_fn = DeepSupervisionWrapper(DC_and_CE_loss({"batch_dice": True, "smooth": 1e-5, "do_bg": False}, {}, dice_class=MemoryEfficientSoftDiceLoss), [1.0, 0.5, 0.25])
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.99, nesterov=True)
scaler = torch.amp.GradScaler("cuda")
for step in range(args.steps):
    x = torch.randn(args.batch, 1, 64, 96, 96).cuda()
    y = torch.randint(0, 3, (args.batch, 1, 64, 96, 96)).cuda().float()
    with torch.autocast("cuda"):
        out = model(x)
        loss = loss_fn(out, [y[:, :, ::2 ** i, ::2 ** i, ::2 ** i] for i in range(len(out))])
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 12)
    scaler.step(optimizer)
    scaler.update()
