#!/bin/bash
# llm.c's train_gpt2.c with OpenMP, as a peer of `terrace bench train`:
#   terrace bench train --dtype f32 --peer 'tools/bench/peers/llmc.sh /path/to/llm.c'
# Builds the peer alone, where it is measured, below its checkout, by the command of llm.c's own Makefile (CC, by default
# gcc), and again when a source, the compiler, the flags or the processor is another; turns the folder of the workload
# into llm.c's files and runs. Needs make, and python3 with numpy (PYTHON).
set -eu
if [[ $# != 2 || ! -e $1/train_gpt2.c ]]; then
  echo "usage: llmc.sh LLM_C_CHECKOUT FOLDER" >&2
  exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
checkout=$(cd "$1" && pwd)
folder=$(cd "$2" && pwd)
binary=$checkout/terrace_peer
its_own=$(make -C "$checkout" --no-print-directory -nB train_gpt2 CC="${CC:-gcc}" | grep -e ' -o train_gpt2$' || true)
if [[ $its_own != *" -DOMP "* ]]; then
  echo "llmc.sh: make train_gpt2 in $checkout must build with OpenMP, got '$its_own'" >&2
  exit 2
fi
read -r -a build <<<"$its_own"
for i in "${!build[@]}"; do
  case ${build[i]} in
    train_gpt2.c) build[i]=$here/llmc_main.c ;;
    train_gpt2) build[i]=$binary ;;
  esac
done
build+=("-I$checkout")
# Sums rather than times: a checkout of an older commit is another source, too.
sources=("$here/llmc_main.c" "$checkout/train_gpt2.c")
[[ ! -d $checkout/llmc ]] || mapfile -d '' -O 2 -t sources < <(find "$checkout/llmc" -type f -name "*.h" -print0 | sort -z)
built_from=$(
  printf '%q ' "${build[@]}" && echo
  "${build[0]}" --version
  grep -m 1 '^model name' /proc/cpuinfo || uname -m
  sha256sum "${sources[@]}"
)
if [[ ! -x $binary || $(cat "$binary.built_from" 2>/dev/null) != "$built_from" ]]; then
  "${build[@]}" >&2
  printf '%s\n' "$built_from" >"$binary.built_from"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" "$here/llmc_files.py" "$folder" "$work"
cd "$work"
"$binary"
