#!/usr/bin/env python3
"""Turns the folder of tools/bench_init.h into llm.c's files: llmc_files.py FOLDER OUT.

OUT/model.bin: header of 256 ints (magic 20240326, version 3, sizes), then fp32 tensors kind by kind, the token
embedding padded to a multiple of 128 rows. OUT/tokens.bin: ints: batches, batch, time, warmup, steps, then all
ids, then all labels; OUT/rates.bin: floats lr, beta1, beta2, eps, weight_decay. Needs numpy.
"""
import json
import os
import sys

import numpy


def read_safetensors(path):
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        data = file.read()
    dtypes = {"F32": numpy.float32, "I32": numpy.int32}
    out = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            out[name] = numpy.frombuffer(data[begin:end], dtypes[entry["dtype"]]).reshape(entry["shape"])
    return out


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: llmc_files.py FOLDER OUT")
    folder, out = sys.argv[1:]
    with open(os.path.join(folder, "workload.json")) as file:
        work = json.load(file)
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    if work["dtype"] != "f32" or work["clip"] != 0:
        sys.exit("llm.c on the CPU computes in fp32 and does not clip: use --dtype f32 and no --clip")
    weights = read_safetensors(os.path.join(folder, "init.safetensors"))
    tokens = read_safetensors(os.path.join(folder, "tokens.safetensors"))
    layers, vocab = config["n_layer"], config["vocab_size"]
    padded = (vocab + 127) // 128 * 128
    header = numpy.zeros(256, numpy.int32)
    header[:8] = [20240326, 3, config["n_positions"], vocab, layers, config["n_head"], config["n_embd"], padded]
    with open(os.path.join(out, "model.bin"), "wb") as file:
        file.write(header.tobytes())
        file.write(weights["wte.weight"].tobytes())
        file.write(numpy.zeros((padded - vocab, config["n_embd"]), numpy.float32).tobytes())
        file.write(weights["wpe.weight"].tobytes())
        for name in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"):
            for part in ("weight", "bias"):
                for layer in range(layers):
                    file.write(weights[f"h.{layer}.{name}.{part}"].tobytes())
        file.write(weights["ln_f.weight"].tobytes())
        file.write(weights["ln_f.bias"].tobytes())
    ids, labels = tokens["input_ids"], tokens["labels"]
    with open(os.path.join(out, "tokens.bin"), "wb") as file:
        file.write(numpy.array([*ids.shape, work["warmup"], work["steps"]], numpy.int32).tobytes())
        file.write(ids.tobytes() + labels.tobytes())
    rates = [work[name] for name in ("lr", "beta1", "beta2", "eps", "weight_decay")]
    numpy.array(rates, numpy.float32).tofile(os.path.join(out, "rates.bin"))


if __name__ == "__main__":
    main()
