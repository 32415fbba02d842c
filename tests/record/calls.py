"""What PyTorch asks of its allocator in single calls of operators, forward and backward.

    python tests/record/calls.py tests/golden/calls

Wants PyTorch 2.11 on a GPU, or under `batchfit run --on h200 --steps 0`, which gives the same; cuDNN is off. A line of `calls.txt.gz` is one call, as
in `elementwise.py`; lists of numbers are written `[1,2]`. Of several results, the gradient flows into the first.
"""

from __future__ import annotations

import gzip
import os
import re
import sys

import torch

X = "self=f32[64,1024]!"
TALL = "self=f32[1024,64]!"
PAIR = "self=f32[64,1024]! target=f32[64,1024]"
BOTH = "self=f32[64,1024]! target=f32[64,1024]!"
SCORES = "self=f32[64,128]! target=i64[64]"
PLANES = "self=f32[4,16,32,32]! target=i64[4,32,32]"
ALSO_WHOLE = "self=i64[64,1024]"

CALLS = [
    # Reductions.
    *(f"aten.{name}.default {of}" for name in ("sum", "mean", "nansum", "max", "min", "var", "std") for of in (X,)),
    *(f"aten.{name}.dim {X} dim=[{dim}] keepdim={keep}" for name in ("var", "std") for dim in (0, 1) for keep in (False, True)),
    *(f"aten.{name}.correction {X} dim=[1] correction=0" for name in ("var", "std", "var_mean", "std_mean")),
    *(f"aten.{name}.correction {X}" for name in ("var_mean", "std_mean")),
    *(f"aten.{name}.default {X} dim=[{dim}]" for name in ("logsumexp", "amax", "amin") for dim in ("0", "1", "0,1")),
    *(f"aten.{name}.default {X} dim=[1] keepdim=True" for name in ("logsumexp", "amax", "amin")),
    f"aten.mean.dim {X} dim=[1]", f"aten.mean.dim {X} dim=[0] keepdim=True", f"aten.mean.dim {X} dim=[1] dtype=7",
    f"aten.sum.dim_IntList {X} dim=[1]", f"aten.sum.dim_IntList {X} dim=[0] keepdim=True", f"aten.sum.dim_IntList {X} dim=[1] dtype=7",
    f"aten.sum.dim_IntList {ALSO_WHOLE} dim=[1]", "aten.sum.default self=bool[64,1024]", "aten.sum.dim_IntList self=bool[64,1024] dim=[1]",
    f"aten.prod.dim_int {X} dim=1", f"aten.prod.dim_int {X} dim=1 keepdim=True", f"aten.prod.dim_int {TALL} dim=1",
    f"aten.nansum.default {X} dim=[1]", f"aten.aminmax.default self=f32[64,1024] dim=1",
    f"aten.max.default {ALSO_WHOLE}", f"aten.amax.default {ALSO_WHOLE} dim=[1]",
    f"aten.count_nonzero.dim_IntList self=f32[64,1024] dim=[1]",
    *(f"aten.linalg_vector_norm.default {X} ord={order} dim=[1]" for order in ("2.0", "1.0", "3.0", "1.5", "0.5", "0.0")),
    f"aten.linalg_vector_norm.default {X}", f"aten.linalg_vector_norm.default {X} ord=2.0 dim=[0] keepdim=True",
    f"aten.linalg_vector_norm.default {X} ord=inf dim=[1]",
    f"aten.norm.Scalar {X}", f"aten.norm.ScalarOpt_dim {X} p=2 dim=[1] keepdim=True", f"aten.norm.ScalarOpt_dim {X} p=1 dim=[0]",
    f"aten.linalg_norm.default {X} dim=[1] keepdim=True", f"aten.linalg_matrix_norm.str_ord {X}",
    # Losses of pairs.
    *(f"aten.{name}.default {of} reduction={reduction}"
      for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits", "kl_div")
      for of in (PAIR, BOTH) for reduction in (0, 1, 2)),
    *(f"aten.{name}.default {PAIR} reduction={reduction}" for name in ("soft_margin_loss",) for reduction in (0, 1, 2)),
    *(f"aten.binary_cross_entropy.default {of} reduction={reduction}" for of in (PAIR, BOTH) for reduction in (0, 1, 2)),
    *(f"aten.binary_cross_entropy.default {PAIR} weight=f32[64,1024] reduction={reduction}" for reduction in (0, 1)),
    *(f"aten.binary_cross_entropy_with_logits.default {PAIR} weight=f32[64,1024] reduction={reduction}" for reduction in (0, 1)),
    *(f"aten.binary_cross_entropy_with_logits.default {PAIR} pos_weight=f32[1024] reduction={reduction}" for reduction in (0, 1)),
    f"aten.binary_cross_entropy_with_logits.default {PAIR} weight=f32[64,1024] pos_weight=f32[1024]",
    *(f"aten.kl_div.default {of} log_target=True reduction={reduction}" for of in (PAIR, BOTH) for reduction in (0, 1, 2)),
    *(f"aten.hinge_embedding_loss.default {PAIR} reduction={reduction}" for reduction in (0, 1, 2)),
    *(f"aten.poisson_nll_loss.default input=f32[64,1024]! target=f32[64,1024] log_input={log} full={full} eps=1e-08 reduction={reduction}"
      for log in (True, False) for full in (True, False) for reduction in (0, 1)),
    # Losses of vectors.
    *(f"aten.margin_ranking_loss.default input1=f32[4096]! input2=f32[4096]! target=f32[4096] margin=0.5 reduction={reduction}" for reduction in (0, 1, 2)),
    *(f"aten.triplet_margin_loss.default anchor=f32[64,128]! positive=f32[64,128]! negative=f32[64,128]! swap={swap} reduction={reduction}"
      for swap in (False, True) for reduction in (0, 1, 2)),
    *(f"aten.cosine_embedding_loss.default input1=f32[64,128]! input2=f32[64,128]! target=f32[64] margin=0.5 reduction={reduction}" for reduction in (0, 1, 2)),
    "aten.cosine_similarity.default x1=f32[64,128]! x2=f32[64,128]!", "aten.cosine_similarity.default x1=f32[64,128]! x2=f32[64,128]",
    "aten.cosine_similarity.default x1=f32[16,1,128]! x2=f32[1,24,128]! dim=-1",
    "aten.pairwise_distance.default x1=f32[64,128]! x2=f32[64,128]!", "aten.pairwise_distance.default x1=f32[64,128]! x2=f32[64,128]! p=1.0 keepdim=True",
    # Losses of classes.
    *(f"aten.{name}.default {of} reduction={reduction}" for name in ("cross_entropy_loss", "nll_loss_nd") for of in (SCORES, PLANES) for reduction in (0, 1, 2)),
    *(f"aten.{name}.default {SCORES} weight=f32[128] reduction={reduction}" for name in ("cross_entropy_loss", "nll_loss_nd") for reduction in (0, 1)),
    *(f"aten.cross_entropy_loss.default {SCORES} label_smoothing=0.1 reduction={reduction}" for reduction in (0, 1, 2)),
    *(f"aten.cross_entropy_loss.default {SCORES} weight=f32[128] label_smoothing=0.1 reduction={reduction}" for reduction in (0, 2)),
    *(f"aten.cross_entropy_loss.default self=f32[64,128]! target=f32[64,128]{weight} reduction={reduction}" for weight in ("", " weight=f32[128]") for reduction in (0, 1, 2)),
    *(f"aten.multi_margin_loss.default {SCORES} reduction={reduction}" for reduction in (0, 1, 2)),
    *(f"aten.multilabel_margin_loss.default self=f32[64,128]! target=i64[64,128] reduction={reduction}" for reduction in (0, 1, 2)),
    *(f"aten.ctc_loss.IntList log_probs=f32[50,16,64]! targets=i64[16,10] input_lengths=[{','.join(['50'] * 16)}] "
      f"target_lengths=[{','.join(['10'] * 16)}] reduction={reduction} zero_infinity={zero}" for reduction in (0, 1, 2) for zero in (False, True)),
    # Scans.
    *(f"aten.{name}.default {X} dim=1" for name in ("cumprod", "cummax", "cummin")),
    f"aten.median.dim {X} dim=1", f"aten.kthvalue.default {X} k=3", f"aten.mode.default {X} dim=1 keepdim=True", f"aten.max.dim {X} dim=1",
    # New tensors.
    "aten.eye.default n=64", "aten.eye.m n=64 m=32", "aten.linspace.default start=0.0 end=1.0 steps=100", "aten.logspace.default start=0.0 end=1.0 steps=100",
    "aten.randint.default high=10 size=[64,8]", "aten.randint.low low=2 high=10 size=[64]", "aten.randperm.default n=1000", "aten.randperm.default n=100000",
    "aten.tril_indices.default row=8 col=6", "aten.triu_indices.default row=8 col=6 offset=1",
    "aten.normal.float_float mean=0.0 std=1.0 size=[64,8]", "aten.randint_like.default self=i64[64,8] high=10",
    # Operators written down as scripts.
    f"aten.logcumsumexp.default {X} dim=1", "aten.trace.default self=f32[24,24]!", "aten.polygamma.default n=1 self=f32[64,64]!",
    "aten.renorm.default self=f32[64,32]! p=2 dim=0 maxnorm=1.0", "aten.renorm.default self=f32[16,32,8]! p=2 dim=1 maxnorm=1.0",
    *(f"aten.addbmm.default self=f32[24,16]! batch1=f32[8,24,5]! batch2=f32[8,5,16]!{factors}" for factors in ("", " beta=0.5 alpha=2")),
    *(f"aten.addr.default self=f32[24,16]! vec1=f32[24]! vec2=f32[16]!{factors}" for factors in ("", " beta=0.5 alpha=2")),
    "aten.addmm.default self=f32[64,16]! mat1=f32[64,32]! mat2=f32[32,16]! beta=0.5 alpha=2", "aten.addmm.default self=f32[16]! mat1=f32[64,32]! mat2=f32[32,16]! alpha=2",
    "aten.addmv.default self=f32[24]! mat=f32[24,16]! vec=f32[16]! beta=0.5 alpha=2", "aten.dist.default self=f32[64,32]! other=f32[64,32]!",
    "aten.median.default self=f32[64,64]!", "aten.nanmedian.default self=f32[64,64]!", "aten.nanmedian.dim self=f32[64,64]! dim=1",
    *(f"aten.special_{name}.default self=f32[64,64]!" for name in ("i1", "i1e")), "aten.special_bessel_j0.default self=f32[64,64]", "aten.special_zeta.other_scalar self=f32[64,64] other=2.0",
    "aten.poisson.default self=f32[64,64]!", "aten.frexp.Tensor self=f32[64,64]!", "aten.native_dropout.default input=f32[64,64]! p=0.5 train=True",
    "aten._standard_gamma.default self=f32[64,64]!", "aten.rrelu_with_noise.default self=f32[64,64]! noise=f32[64,64] training=True",
    "aten._cdist_forward.default x1=f32[8,24,16]! x2=f32[8,20,16]! p=1.0 compute_mode=0", "aten._euclidean_dist.default x1=f32[8,24,16]! x2=f32[8,20,16]!", "aten._pdist_forward.default self=f32[24,16]!",
    "aten.fake_quantize_per_tensor_affine_cachemask.default self=f32[64,64]! scale=0.1 zero_point=0 quant_min=-128 quant_max=127",
    "aten._fake_quantize_learnable_per_tensor_affine.default self=f32[64,64]! scale=f32[1]! zero_point=f32[1]! quant_min=-128 quant_max=127 grad_factor=1.0",
    *(f"aten.multinomial.default self=f32[64,32] num_samples={count} replacement={replacement}" for count, replacement in ((4, False), (1, False), (4, True))),
    *(f"aten.rot90.default self=f32[8,24,16]! k={k} dims=[1,2]" for k in (0, 1, 2, 3)),
    "aten.as_strided.default self=f32[64,64]! size=[61,64,4] stride=[64,1,1]",
    *(f"aten.{name}.default A=f32[8,24,24]!" for name in ("_linalg_det", "_linalg_slogdet", "linalg_inv_ex", "linalg_lu_factor_ex")),
    "aten._linalg_solve_ex.default A=f32[8,24,24]! B=f32[8,24,5]!", "aten.linalg_solve_triangular.default self=f32[8,24,24]! B=f32[8,24,5]! upper=False",
    *(f"aten.adaptive_avg_pool{rank}d.default self=f32[{of}]! output_size=[{to}]"
      for rank, of, to in ((1, "4,16,64", "1"), (2, "4,16,8,8", "1,1"), (3, "4,16,8,8,8", "1,1,1"))),
    # Writing to places.
    f"aten.index_fill.int_Scalar {X} dim=1 index=i64[8] value=0.5", f"aten.index_fill.int_Tensor {X} dim=1 index=i64[8] value=f32[]",
    *(f"aten.scatter.reduce self=f32[64,1024] dim=1 index=i64[64,8] src=f32[64,8] reduce={how}" for how in ("add", "multiply")),
]  # fmt: skip
# Under autocast, operands are bfloat16.
ONLY_FLOAT32 = re.compile(r"aten\.(binary_cross_entropy\.|ctc_loss|_euclidean_dist|trace|_fake_quantize_learnable)|=(i64|bool)\[64,1024\]$|aten\.(eye|\w+space|rand|tri._|normal)")
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "i64": torch.int64, "bool": torch.bool}


def value(text: str):
    tensor = re.fullmatch(r"(\w+)\[([\d,]*)\](!?)", text)
    if tensor and tensor[1] in TYPES:
        shape = [int(length) for length in tensor[2].split(",") if length]
        made = torch.zeros(shape, dtype=TYPES[tensor[1]], device="cuda")
        return made.requires_grad_() if tensor[3] else made
    if text.startswith("["):
        return [int(number) for number in text[1:-1].split(",") if number]
    if text in ("True", "False"):
        return text == "True"
    if text.isalpha() and text != "inf":
        return text
    return float(text) if any(mark in text for mark in ".ein") else int(text)


def events(since: int) -> list[str]:
    sign = {"alloc": "+", "free_requested": "-"}
    found = torch.cuda.memory._snapshot()["device_traces"][0][since:]
    return [f"{sign[event['action']]}{event['size']}" for event in found if event["action"] in sign]


def count() -> int:
    return len(torch.cuda.memory._snapshot()["device_traces"][0])


def recorded(call: str, mode: str) -> str:
    target, *words = call.split()
    if mode == "amp":
        words = [word.replace("=f32[", "=bf16[") for word in words]
    packet, overload = target.removeprefix("aten.").split(".")
    function = getattr(getattr(torch.ops.aten, packet), overload)
    given = {name: value(text) for name, text in (word.split("=", 1) for word in words)}
    if "dtype" in given:
        given["dtype"] = torch.float32
    if not any(isinstance(argument, torch.Tensor) for argument in given.values()):
        given["device"] = "cuda"
    start = count()
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=mode == "amp"):
        results = function(**given)
    found = events(start)
    result = results[0] if isinstance(results, tuple) else results
    if result.requires_grad:
        gradient = torch.zeros_like(result)
        torch.cuda.synchronize()
        start = count()
        result.backward(gradient)
        found += events(start)
    return f"{target} {mode} {' '.join(words)} | {' '.join(found)}"


def main() -> int:
    if not torch.__version__.startswith("2.11."):
        sys.exit(f"the recordings are of PyTorch 2.11, and this is {torch.__version__}")
    (out,) = sys.argv[1:]
    torch.backends.cudnn.enabled = False
    torch.cuda.init()
    # What cuBLAS and cuBLASLt keep is there before.
    warm = torch.zeros(4, 4, device="cuda", requires_grad=True)
    (torch.addmm(warm[0], warm, warm) @ warm).sum().backward()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=5_000_000)
    lines = []
    for call in CALLS:
        for mode in ("fp32",) if ONLY_FLOAT32.search(call) else ("fp32", "amp"):
            try:
                lines.append(recorded(call, mode))
            except Exception as error:  # noqa: BLE001
                print(f"{call} {mode}: {str(error).splitlines()[0]}")
    os.makedirs(out, exist_ok=True)
    with gzip.GzipFile(os.path.join(out, "calls.txt.gz"), "wb", mtime=0) as file:
        file.write(("\n".join(lines) + "\n").encode())
    print(f"{len(lines)} calls")
    return 0


if __name__ == "__main__":
    sys.exit(main())
