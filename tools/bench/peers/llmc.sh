#!/bin/bash
# llm.c's train_gpt2.c with OpenMP, as a peer of `terrace bench train`:
#   terrace bench train --dtype f32 --peer 'tools/bench/peers/llmc.sh /path/to/llm.c'
# Builds the peer alone, where it is measured, below its checkout, with the flags of llm.c's own Makefile, for the
# processor at hand too (CC, by default gcc; clang's are the same);
# turns the folder of the workload into llm.c's files and runs. Needs python3 with numpy (PYTHON).
set -eu
if [[ $# != 2 || ! -e $1/train_gpt2.c ]]; then
  echo "usage: llmc.sh LLM_C_CHECKOUT FOLDER" >&2
  exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
checkout=$(cd "$1" && pwd)
folder=$(cd "$2" && pwd)
binary=$checkout/terrace_peer
if [[ ! $binary -nt $here/llmc_main.c ]]; then
  # The flags of its own Makefile, for the machine that measures; nothing of ours is built so.
  "${CC:-gcc}" -Ofast -march=native -fopenmp -DOMP -Wno-unused-result -Wno-ignored-pragmas -I"$checkout" \
    -o "$binary" "$here/llmc_main.c" -lm >&2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" "$here/llmc_files.py" "$folder" "$work"
cd "$work"
"$binary"
