#!/usr/bin/env python3
"""Makes gpt2_tiny.safetensors: what a tiny GPT-2 computes in PyTorch, in f64.

Run by people, never by a build:

    python3 -m venv venv
    venv/bin/pip install torch transformers numpy safetensors
    venv/bin/python tests/golden/make_gpt2_golden.py           # writes
    venv/bin/python tests/golden/make_gpt2_golden.py --check   # compares

Last made with Python 3.11, torch 2.15.0, transformers 5.24.0, numpy 2.4.6 and
safetensors 0.8.0 on an x86-64 CPU; the file's metadata names its own versions.

Model: Hugging Face's GPT2LMHeadModel; 2 layers, 2 heads, width 32, context 32,
vocabulary 257, tied head, tanh GELU, layer norm eps 1e-5, no dropout. Weights,
gains and biases are random numbers of about 0.15 (gains around 1), each exact
in f32, so that an f32 program starts from the same values.

Contents; P stands for every parameter, named as in Hugging Face without
"transformer.", linear weights as [out, in]:
  P                   F64  initial weights
  input_ids, labels   I32  [2, 32]; labels[b, t] is the target of position t,
                           -100 is ignored
  logits              F64  [2, 32, 257]
  loss_sum            F64  [1], sum of cross entropy over valid labels
  loss_count          I32  [1], number of valid labels
  grad.P              F64  gradient of loss_sum / loss_count
  train.input_ids, train.labels   I32  [10, 2, 32], one batch per step
  train.losses        F64  [10], mean over valid labels, before each step
  final.P             F64  weights after the ten steps, from P, of AdamW with
                           lr 1e-3, betas 0.9 0.999, eps 1e-8, weight decay 0.1
                           on all parameters, no clipping
"""

import argparse
import pathlib
import platform
import sys

import numpy as np
import safetensors
from safetensors.numpy import load_file, save_file
import torch
import transformers
from torch.nn.functional import cross_entropy

PATH = pathlib.Path(__file__).parent / "gpt2_tiny.safetensors"
BATCH, LENGTH, VOCAB, STEPS = 2, 32, 257, 10
IGNORE = -100
SEED = 20240607
TOLERANCE = 1e-10


def make_model(attention):
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2,
        activation_function="gelu_new", layer_norm_epsilon=1e-5,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        tie_word_embeddings=True, use_cache=False,
        bos_token_id=256, eos_token_id=256)
    config._attn_implementation = attention
    model = transformers.GPT2LMHeadModel(config).double().eval()
    assert model.lm_head.weight is model.transformer.wte.weight
    assert model.config._attn_implementation == attention
    return model


def parameters(model):
    """Our name and the tensor, in Hugging Face's order; the tie once."""
    return [(name.removeprefix("transformer."), p)
            for name, p in model.named_parameters()]


def fill(model, random):
    with torch.no_grad():
        for name, p in parameters(model):
            values = 0.15 * random.standard_normal(tuple(p.shape))
            if ".ln_" in "." + name and name.endswith("weight"):
                values += 1.0
            p.copy_(torch.from_numpy(values.astype(np.float32)))


def ours(name, tensor):
    """A tensor in our layout: Conv1D keeps [in, out], we keep [out, in]."""
    values = tensor.detach().numpy()
    is_conv1d = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
    return np.array(values.T if is_conv1d else values, order="C")


def make_batch(random, ignored):
    """Ids and the next id as label; `ignored` labels (one a row end) are -100."""
    stream = random.integers(0, VOCAB, (BATCH, LENGTH + 1))
    ids, labels = stream[:, :-1].copy(), stream[:, 1:].copy()
    flat = labels.reshape(-1)
    flat[random.choice(flat.size, ignored, replace=False)] = IGNORE
    return ids.astype(np.int32), labels.astype(np.int32)


def forward(model, ids, labels):
    logits = model(torch.from_numpy(ids).long()).logits
    target = torch.from_numpy(labels).long().reshape(-1)
    total = cross_entropy(logits.reshape(-1, VOCAB), target,
                          ignore_index=IGNORE, reduction="sum")
    return logits, total, int((target != IGNORE).sum())


def compute(attention):
    # PCG64 by name: its stream, unlike default_rng's, is fixed for ever.
    random = np.random.Generator(np.random.PCG64(SEED))
    model = make_model(attention)
    fill(model, random)
    out = {name: ours(name, p) for name, p in parameters(model)}

    ids, labels = make_batch(random, ignored=5)
    logits, total, count = forward(model, ids, labels)
    (total / count).backward()
    out.update({"input_ids": ids, "labels": labels,
                "logits": logits.detach().numpy().copy(),
                "loss_sum": np.array([total.item()]),
                "loss_count": np.array([count], dtype=np.int32)})
    out.update({f"grad.{name}": ours(name, p.grad)
                for name, p in parameters(model)})

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3,
                                  betas=(0.9, 0.999), eps=1e-8,
                                  weight_decay=0.1, foreach=False)
    batches, losses = [], []
    for step in range(STEPS):
        batches.append(make_batch(random, ignored=step % 4))
        optimizer.zero_grad()
        _, total, count = forward(model, *batches[-1])
        loss = total / count
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    out["train.input_ids"] = np.stack([ids for ids, _ in batches])
    out["train.labels"] = np.stack([labels for _, labels in batches])
    out["train.losses"] = np.array(losses)
    out.update({f"final.{name}": ours(name, p)
                for name, p in parameters(model)})
    return out


def greatest_difference(a, b):
    """Norm of the difference over norm, the worst tensor; names must agree."""
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    worst = (0.0, "none")
    for name in a:
        assert a[name].shape == b[name].shape, name
        x, y = a[name].astype(np.float64), b[name].astype(np.float64)
        norm = np.linalg.norm(y)
        worst = max(worst, (np.linalg.norm(x - y) / (norm or 1.0), name))
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true",
                        help="compare with the file instead of writing it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    out = compute("eager")
    # Two implementations of attention must agree before either is an oracle.
    # Least exact is final.*.c_attn.bias: the key bias has a zero gradient, so
    # Adam divides rounding noise (1e-18) by eps.
    error, name = greatest_difference(compute("sdpa"), out)
    print(f"eager against sdpa: {error:.1e} ({name})")
    assert error < TOLERANCE
    if args.check:
        error, name = greatest_difference(load_file(PATH), out)
        print(f"{PATH.name} against this run: {error:.1e} ({name})")
        return 0 if error < TOLERANCE else 1
    save_file(out, PATH, metadata={
        "made_by": pathlib.Path(__file__).name,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "safetensors": safetensors.__version__,
    })
    count = sum(p.size for n, p in out.items() if n.startswith("final."))
    print(f"{PATH}: {PATH.stat().st_size} bytes, {count} parameters, "
          f"loss {out['loss_sum'][0] / out['loss_count'][0]:.6f}, "
          f"training {np.round(out['train.losses'], 4)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
