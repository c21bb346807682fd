#!/bin/bash
# Runs every example and looks for what it must print.
set -u -o pipefail
failed=0

# expect PATTERN EXAMPLE [ARGS...]
expect() {
  local pattern=$1 example=$2 out
  shift 2
  if ! out=$("examples/$example" "$@" 2>&1) || ! grep -Eq -- "$pattern" <<<"$out"; then
    printf 'examples/%s %s must print /%s/, got:\n%s\n' "$example" "$*" "$pattern" "$out"
    failed=1
  fi
}

expect '^x -1.00  y -0.25  dx -0.25$' custom_op
expect '^line.weight (2\.9|3\.0)' linear_regression
expect '^line.bias -(0\.9|1\.0)' linear_regression
expect '^step 500 loss 0\.0' tiny_transformer --threads 1
expect '^step 500 loss 0\.0' tiny_transformer --threads 1 --ranks 2 \
  --set zero_optimization.stage=3 --set terrace.activation_checkpointing_policy=block
exit $failed
