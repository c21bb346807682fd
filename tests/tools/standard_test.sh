#!/bin/bash
# A program that is compiled as older C++ is told so, before anything else.
source "$(dirname "$0")/cases.sh"
ln -s "$root" "$work/terrace"

# first_error STANDARD HEADER: what the compiler says first, "" for nothing.
first_error() {
  echo "#include \"terrace/$2\"" >"$work/program.cc"
  { "${CXX:-c++}" "-std=$1" -fsyntax-only "-I$work" "$work/program.cc" 2>&1 || true; } | grep -m1 'error'
}
told() { [[ $(first_error c++17 "$1") == *"Terrace needs C++20: compile with -std=c++20"* ]]; }
compiles() { [[ -z $(first_error c++20 "$1") ]]; }

for header in core/tensor.h autograd/backward.h nn/linear.h models/gpt2.h zero/engine.h; do
  check "Cxx17IsRefused_$header" told "$header"
done
check Cxx20IsTaken compiles core/tensor.h
finish
