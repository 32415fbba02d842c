"""timm: EfficientNet-B0 (depthwise convolutions, squeeze and excitation) with RMSprop, float32, TF32 allowed."""
import timm, timm.optim, torch
from measure import arguments

torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
args = arguments(batch=32)
model = timm.create_model("efficientnet_b0", pretrained=False, num_classes=1000).cuda()
optimizer = timm.optim.create_optimizer_v2(model, opt="rmsproptf", lr=0.01, momentum=0.9)
for step in range(args.steps):
    loss = torch.nn.functional.cross_entropy(model(torch.randn(args.batch, 3, 224, 224, device="cuda")), torch.randint(0, 1000, (args.batch,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
