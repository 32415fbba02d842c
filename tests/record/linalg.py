"""What linear algebra asks of PyTorch's caching allocator on a real card, forward and backward, call by call.

    OUT=folder python linalg.py

Self-contained, PyTorch 2.11 only. Writes OUT/linalg.json: one entry a call: operator, shapes, `+bytes`/`-bytes` of forward and
backward, and by how much the memory outside of the allocator grew in the first such call. Stops after SECONDS (100).
"""
import json, os, time
import torch

OUT = os.environ.get("OUT", ".")
END = time.monotonic() + float(os.environ.get("SECONDS", "100"))
torch.manual_seed(0)
torch.cuda.init()
torch.zeros(1, device="cuda")
torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=5_000_000)


def count():
    return len(torch.cuda.memory._snapshot()["device_traces"][0])


def events(since):
    sign = {"alloc": "+", "free_requested": "-"}
    found = torch.cuda.memory._snapshot()["device_traces"][0][since:]
    return " ".join(f"{sign[e['action']]}{e['size']}" for e in found if e["action"] in sign)


def outside():
    torch.cuda.synchronize()
    free, _ = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved()


def general(*shape):
    return torch.randn(*shape, device="cuda").requires_grad_()


def definite(*shape):
    a = torch.randn(*shape, device="cuda")
    return (a @ a.mT + shape[-1] * torch.eye(shape[-1], device="cuda")).detach().requires_grad_()


def lower(*shape):
    return (torch.randn(*shape, device="cuda").tril() + shape[-1] * torch.eye(shape[-1], device="cuda")).detach().requires_grad_()


def cases():
    aten = torch.ops.aten
    for lead in ((), (1,), (4,), (32,), (600,)):
        for n in (8, 24, 64, 160, 520, 1100):
            if n > 160 and lead == (600,):
                continue
            sq = (*lead, n, n)
            tall = (*lead, n, n // 2)
            wide = (*lead, n // 2, n)
            yield "linalg_solve_ex", aten._linalg_solve_ex.default, [definite(*sq), general(*lead, n, 5)], {}
            yield "linalg_inv_ex", aten.linalg_inv_ex.default, [definite(*sq)], {}
            yield "linalg_det", aten._linalg_det.default, [definite(*sq)], {}
            yield "linalg_slogdet", aten._linalg_slogdet.default, [definite(*sq)], {}
            yield "linalg_cholesky_ex", aten.linalg_cholesky_ex.default, [definite(*sq)], {}
            yield "linalg_cholesky_ex upper", aten.linalg_cholesky_ex.default, [definite(*sq)], {"upper": True}
            yield "linalg_solve_triangular", aten.linalg_solve_triangular.default, [lower(*sq), general(*lead, n, 5)], {"upper": False}
            yield "cholesky_solve", aten.cholesky_solve.default, [general(*lead, n, 5), lower(*sq)], {}
            yield "cholesky_inverse", aten.cholesky_inverse.default, [lower(*sq)], {}
            yield "linalg_lu_factor_ex", aten.linalg_lu_factor_ex.default, [definite(*sq)], {}
            yield "linalg_lu", aten.linalg_lu.default, [definite(*sq)], {}
            if n <= 160 or lead in ((), (4,)):
                yield "linalg_qr", aten.linalg_qr.default, [general(*sq)], {}
                yield "linalg_qr", aten.linalg_qr.default, [general(*tall)], {}
                yield "linalg_matrix_exp", aten.linalg_matrix_exp.default, [(general(*sq) / n).detach().requires_grad_()], {}
                yield "linalg_householder_product", aten.linalg_householder_product.default, [general(*tall), general(*lead, n // 2)], {}
            if n <= 160 and lead != (600,) or (n <= 520 and lead == ()):
                yield "linalg_eigh", aten._linalg_eigh.default, [definite(*sq)], {}
                yield "linalg_svd", aten._linalg_svd.default, [general(*tall)], {}
                yield "linalg_svd", aten._linalg_svd.default, [general(*wide)], {}
                yield "linalg_svd", aten._linalg_svd.default, [general(*sq)], {}
                yield "linalg_svdvals", aten._linalg_svd.default, [general(*sq).detach()], {"compute_uv": False}
                yield "linalg_lstsq", aten.linalg_lstsq.default, [general(*tall), general(*lead, n, 5)], {}
                yield "linalg_pinv", aten.linalg_pinv.atol_rtol_tensor, [general(*tall)], {}
            if n <= 64 and lead in ((), (4,)):
                yield "linalg_eig", aten.linalg_eig.default, [general(*sq)], {}


rows = []
try:
    for name, function, arguments, keywords in cases():
        if time.monotonic() > END:
            break
        row = {"operator": name, "shapes": [list(a.shape) for a in arguments], **keywords}
        try:
            before = outside()
            start = count()
            results = function(*arguments, **keywords)
            row["forward"] = events(start)
            results = results if isinstance(results, tuple) else (results,)
            row["outside"] = before - outside()
            row["results"] = [list(r.shape) for r in results]
            trained = [r for r in results if r.requires_grad]
            if trained:
                seeds = [torch.ones_like(r) for r in trained]
                torch.cuda.synchronize()
                start = count()
                torch.autograd.backward(trained, seeds)
                row["backward"] = events(start)
                del seeds
            del results, trained
        except Exception as error:
            row["error"] = str(error).splitlines()[0][:300]
        rows.append(row)
        for a in arguments:
            a.grad = None
        del arguments
        torch.cuda.empty_cache()
finally:
    os.makedirs(OUT, exist_ok=True)
    card = torch.cuda.get_device_properties(0)
    told = {"torch": torch.__version__, "card": card.name, "magma": torch.cuda.has_magma, "rows": rows}
    with open(os.path.join(OUT, "linalg.json"), "w") as file:
        json.dump(told, file)
    print(len(rows), "calls", sum("error" in row for row in rows), "errors")
