#!/usr/bin/env python3
"""Single operations of PyTorch on the CPU beside `terrace bench`, turn by turn.

  python3 tools/bench/peers/ops_torch.py tools/terrace [ROUNDS]

attention: scaled_dot_product_attention, causal, 12 heads, forward and backward, with the split and the layout of GPT-2.
adamw: torch.optim.AdamW(fused=True) over one tensor of 16 M parameters.
products: the forward products of GPT-2's Linears at 1024 tokens, fp32, by the oneDNN inside PyTorch and by torch.mm
(MKL in x86 wheels), their best against our median: GFLOP/s of all three, and the ratio to the faster of the two.
Each round measures ours, then PyTorch's, the best of several calls each; the ratio (ours over PyTorch's) is the median
over the rounds, with the least and greatest. Needs torch.
"""
import json
import os
import statistics
import subprocess
import sys
import time

import torch
from torch.nn import functional as F

CALLS = 7


def best(run):
    run()
    seconds = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def attention(t, d, dtype):
    qkv = torch.randn(1, t, 3 * 12 * d, dtype=dtype, requires_grad=True)
    dy = torch.randn(1, t, 12 * d, dtype=dtype)

    def run():
        qkv.grad = None
        q, k, v = (x.view(1, t, 12, d).transpose(1, 2) for x in qkv.split(12 * d, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y.transpose(1, 2).reshape(1, t, 12 * d).backward(dy)

    return best(run)


def adamw():
    w = torch.randn(1 << 24, requires_grad=True)
    w.grad = torch.randn(1 << 24)
    optimizer = torch.optim.AdamW([w], lr=1e-4, weight_decay=0.1, fused=True)
    return best(optimizer.step)


def products(m, n, k):
    x, w = torch.randn(m, k), torch.randn(n, k)
    onednn = best(lambda: torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], ""))
    return onednn, best(lambda: torch.mm(x, w.t()))


def ours(terrace, name, *flags):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    out = subprocess.run([terrace, "bench", name, "--json", "--rounds", str(CALLS), *flags], env=environment,
                         check=True, stdout=subprocess.PIPE, text=True).stdout
    return {row["what"]: row for row in json.loads(out)["rows"] if row["bench"] == name}


def main():
    words = sys.argv[1:]
    if len(words) not in (1, 2) or not all(word.isdecimal() and int(word) > 0 for word in words[1:]):
        sys.exit("usage: ops_torch.py TERRACE [ROUNDS]")
    terrace, rounds = words[0], int(words[1]) if len(words) == 2 else 5
    ratios = {}
    for _ in range(rounds):
        rows = ours(terrace, "attention")
        for case, row in rows.items():
            words = case.split()
            t, d = (int(words[words.index(key) + 1]) for key in ("T", "D"))
            dtype = torch.bfloat16 if words[0] == "bf16" else torch.float32
            ratios.setdefault("attention " + case, []).append(row["forward_backward_s"] / attention(t, d, dtype))
        for case, row in ours(terrace, "adamw").items():
            if "best_s" in row and "parameters" in case:
                ratios.setdefault("adamw " + case, []).append(row["best_s"] / adamw())
        for case, row in ours(terrace, "matmul", "--dtype", "f32", "--sequence", "1024").items():
            if "forward" not in case or "N 50304" in case:
                continue
            words = case.split()
            m, n, k = (int(words[words.index(key) + 1]) for key in ("M", "N", "K"))
            onednn, mm = products(m, n, k)
            rates = (2 * m * n * k / seconds / 1e9 for seconds in (row["seconds"], onednn, mm))
            print("products %s: %.0f, oneDNN %.0f, mm %.0f GFLOP/s" % (case, *rates), flush=True)
            ratios.setdefault("products " + case, []).append(row["seconds"] / min(onednn, mm))
    for case, values in ratios.items():
        print(f"{case}: {statistics.median(values):.2f} ({min(values):.2f}, {max(values):.2f})")


if __name__ == "__main__":
    main()
