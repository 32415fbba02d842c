"""timm: ConvNeXt-Tiny in channels_last with ModelEmaV3 and NativeScaler, fp16."""
import timm, timm.optim, torch
from timm.utils import ModelEmaV3, NativeScaler
from measure import arguments

args = arguments(batch=24)
model = timm.create_model("convnext_tiny", pretrained=False, num_classes=100, drop_path_rate=0.1).cuda().to(memory_format=torch.channels_last)
ema = ModelEmaV3(model, decay=0.999)
optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.8)
scaler = NativeScaler()
for step in range(args.steps):
    x, y = torch.randn(args.batch, 3, 224, 224).cuda().contiguous(memory_format=torch.channels_last), torch.randint(0, 100, (args.batch,)).cuda()
    with torch.autocast("cuda", dtype=torch.float16): loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler(loss, optimizer, clip_grad=3.0, parameters=model.parameters())
    ema.update(model, step=step)
