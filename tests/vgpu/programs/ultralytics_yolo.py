"""ultralytics: YOLO11n trained by its own trainer on a few pictures that the script draws."""
import os, tempfile
os.environ["YOLO_OFFLINE"] = "true"
os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.mkdtemp())
import numpy as np, torch
from PIL import Image
from measure import arguments

args = arguments(batch=8)


def main():
    from ultralytics import YOLO
    root, r = tempfile.mkdtemp(), np.random.default_rng(0)
    for part in ("train", "val"):
        os.makedirs(f"{root}/images/{part}"); os.makedirs(f"{root}/labels/{part}")
        for i in range(args.batch * args.steps if part == "train" else args.batch):
            Image.fromarray(r.integers(0, 255, (320, 320, 3), dtype=np.uint8)).save(f"{root}/images/{part}/{i}.png")
            with open(f"{root}/labels/{part}/{i}.txt", "w") as f: f.write("".join(f"{r.integers(0, 3)} {x:.3f} {y:.3f} 0.2 0.3\n" for x, y in r.uniform(0.2, 0.8, (3, 2))))
    with open(f"{root}/data.yaml", "w") as f: f.write(f"path: {root}\ntrain: images/train\nval: images/val\nnames: [a, b, c]\n")
    YOLO("yolo11n.yaml").train(data=f"{root}/data.yaml", epochs=1, batch=args.batch, imgsz=320, device=0, workers=0, amp=False, pretrained=False, plots=False, project=root, verbose=False)


if __name__ == "__main__": main()
