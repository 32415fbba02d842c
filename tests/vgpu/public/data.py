"""data.py ROOT: small sets of random data where the scripts look for theirs."""
import os, pickle, struct, sys
import numpy as np
from PIL import Image


def make(root):
    r = np.random.default_rng(0)

    def folder(name):
        os.makedirs(f"{root}/{name}", exist_ok=True)
        return f"{root}/{name}"

    def image(path, height, width, side, channels=(3,)):
        pixels = r.integers(0, 256, (height, width, *channels), dtype=np.uint8)
        Image.fromarray(pixels).resize(side).save(path)

    for name, count in (("train", 2048), ("t10k", 1024)):
        for kind, a in (("images-idx3", r.integers(0, 256, (count, 28, 28))), ("labels-idx1", r.integers(0, 10, count))):
            with open(f"{folder('MNIST/raw')}/{name}-{kind}-ubyte", "wb") as f: f.write(struct.pack(f">HBB{a.ndim}I", 0, 8, a.ndim, *a.shape) + a.astype(np.uint8).tobytes())
    for name, key, classes, parts in (("cifar-10-batches-py", "labels", 10, [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]), ("cifar-100-python", "fine_labels", 100, ["train", "test"])):
        for part in parts:
            count = 5120 // 10 if classes == 10 else 1024
            with open(f"{folder(name)}/{part}", "wb") as f: pickle.dump({"data": r.integers(0, 256, (count, 3072), dtype=np.uint8), key: r.integers(0, classes, count).tolist()}, f)
        with open(f"{folder(name)}/{'batches.meta' if classes == 10 else 'meta'}", "wb") as f: pickle.dump({"label_names": list("abcdefghij"), "fine_label_names": [str(i) for i in range(100)]}, f)
    for split, count in (("train", 48), ("val", 8), ("validation", 8)):
        for c in "ab":
            for i in range(count): image(f"{folder(f'folder/{split}/{c}')}/{i}.jpg", 40, 40, (256, 256))
    for i in range(128): image(f"{folder('flat')}/{i}.png", 16, 16, (128, 128))
    for i in range(40):
        image(f"{folder('imgs')}/{i}.jpg", 64, 96, (960, 640))
        Image.fromarray((r.integers(0, 2, (64, 96)) * 255).astype(np.uint8)).resize((960, 640), 0).save(f"{folder('masks')}/{i}_mask.gif")
    for split in ("train", "val"):
        r.integers(0, 65, 200000).astype(np.uint16).tofile(f"{folder('chars')}/{split}.bin")
        np.save(f"{folder('edu_fineweb10B')}/edufineweb_{split}_000000.npy", r.integers(0, 50257, 1200000).astype(np.uint16))
    hours = np.datetime64("2016-07-01T00") + np.arange(17420)
    with open(f"{folder('ETT')}/ETTh1.csv", "w") as f:
        f.write("date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT\n")
        for hour, values in zip(hours, r.standard_normal((17420, 7)).round(3)): f.write(str(hour).replace("T", " ") + ":00:00," + ",".join(map(str, values)) + "\n")
    for split in ("train", "valid", "test"):
        with open(f"{folder('words')}/{split}.txt", "w") as f: f.writelines(" ".join(f"w{j}" for j in r.integers(0, 3000, 20)) + "\n" for _ in range(2000))


make(sys.argv[1])
