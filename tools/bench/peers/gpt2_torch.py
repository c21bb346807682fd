#!/usr/bin/env python3
"""GPT-2 training in PyTorch on the CPU, as a peer of `terrace bench train`.

  terrace bench train --peer 'python3 tools/bench/peers/gpt2_torch.py eager'
  terrace bench train --peer 'python3 tools/bench/peers/gpt2_torch.py compile'

Loads the folder of tools/bench_init.h (its last argument), trains with SDPA, fused AdamW and, for bf16,
autocast over fp32 weights, and prints one line of JSON (tools/bench_peer.h). Needs torch and safetensors.
"""
import json
import os
import sys
import time

STARTED = float(os.environ.get("TERRACE_BENCH_STARTED", time.monotonic()))


def resident(field):
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return 0


import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads, inner, eps):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width, eps=eps)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)})
        self.ln_2 = nn.LayerNorm(width, eps=eps)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, inner), "c_proj": nn.Linear(inner, width)})

    def forward(self, x):
        batch, time_, width = x.shape
        q, k, v = self.attn["c_attn"](self.ln_1(x)).split(width, dim=2)
        q, k, v = (t.view(batch, time_, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(batch, time_, width))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, eps = config["n_embd"], config["layer_norm_epsilon"]
        inner = config.get("n_inner") or 4 * width
        self.wte = nn.Embedding(config["vocab_size"], width)
        self.wpe = nn.Embedding(config["n_positions"], width)
        self.h = nn.ModuleList(Block(width, config["n_head"], inner, eps) for _ in range(config["n_layer"]))
        self.ln_f = nn.LayerNorm(width, eps=eps)

    def forward(self, ids, labels):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("eager", "compile"):
        sys.exit("usage: gpt2_torch.py eager|compile FOLDER")
    mode, folder = sys.argv[1:]
    with open(os.path.join(folder, "workload.json")) as file:
        work = json.load(file)
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    torch.set_num_threads(work["threads"])
    baseline = resident("VmRSS")
    model = GPT2(config)
    # Whatever is not in both is an error; the output layer is the token embedding.
    model.load_state_dict(load_file(os.path.join(folder, "init.safetensors")))
    tokens = load_file(os.path.join(folder, "tokens.safetensors"))
    ids, labels = tokens["input_ids"].long(), tokens["labels"].long()
    adam = torch.optim.AdamW(
        model.parameters(), lr=work["lr"], betas=(work["beta1"], work["beta2"]), eps=work["eps"],
        weight_decay=work["weight_decay"], fused=True)
    call = torch.compile(model) if mode == "compile" else model
    losses, times, first = [], [], 0.0
    for step in range(work["warmup"] + work["steps"]):
        begin = time.monotonic()
        batch = step % len(ids)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=work["dtype"] == "bf16"):
            loss = call(ids[batch], labels[batch])
        loss.backward()
        if work["clip"] > 0:
            nn.utils.clip_grad_norm_(model.parameters(), work["clip"])
        adam.step()
        adam.zero_grad(set_to_none=True)
        losses.append(loss.item())
        end = time.monotonic()
        if step == 0:
            first = end - STARTED
        if step >= work["warmup"]:
            times.append(end - begin)
    print(json.dumps({
        "name": f"torch {torch.__version__} {mode}",
        "losses": losses,
        "step_s": times,
        "peak_rss_bytes": resident("VmHWM"),
        "baseline_bytes": baseline,
        "startup_s": first,
    }))


if __name__ == "__main__":
    main()
