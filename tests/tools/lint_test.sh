#!/bin/bash
# Each rule of tools/lint finds what is planted against it, and lets the allowed form pass.
source "$(dirname "$0")/cases.sh"
unset_xml=(env -u XML_OUTPUT_FILE)
tree=$work/tree

fresh() {
  rm -rf "$tree"
  mkdir -p "$tree/tools/build" "$tree"/{core,kernels/cpu,autograd,zero/config,nn,models,offload,tests/nn,examples}
  cp "$root/tools/build/layers.bzl" "$tree/tools/build/"
  touch "$tree"/{WORKSPACE,BUILD}
}
plant() { printf '%s\n' "${@:2}" >"$tree/$1"; }

# caught RULE FILE LINE...: a tree with that file alone breaks that rule, and no other.
caught() {
  local out
  fresh
  plant "${@:2}"
  out=$("${unset_xml[@]}" "$root/tools/lint/layers" "$tree") && { echo "accepted: ${*:2}"; return 1; }
  contains "$out" "$2:" "[$1]" "rules or files, 1 with violations"
}
passes() {
  fresh
  plant "$@"
  "${unset_xml[@]}" "$root/tools/lint/layers" "$tree"
}

check UpwardIncludeIsCaught caught arrows.core core/x.cc '#include "terrace/kernels/copy.h"'
check NnIncludesNoKernels caught arrows.nn nn/x.h '#include "terrace/kernels/copy.h"'
check ModelsIncludeNoOffload caught arrows.models models/x.cc '#include "terrace/offload/tier.h"'
check NothingIncludesTests caught arrows.zero zero/config/x.cc '  #  include <terrace/tests/support/ranks.h>'
check IncludeWithoutPrefixIsCaught caught arrows.zero zero/x.cc '#include "core/shape.h"'
check IncludeBesideIsCaught caught arrows.kernels kernels/x.cu '#include "x.h"'
check UnknownFolderIsCaught caught arrows.core core/x.h '#include "terrace/util/x.h"'
check UpwardLabelIsCaught caught arrows.core core/BUILD 'cc_library(deps = ["//tools/build:x", "//nn"])'
check AllowedArrowsPass passes nn/x.h '#include "terrace/zero/config/x.h"' '#include "terrace/nn/y.h"' '#include <vector>' \
  '#include "gtest/gtest.h"'
check AllowedLabelsPass passes zero/BUILD 'load("//tools/build:terrace.bzl", "x")' 'x(deps = ["//core", "//offload:tier"])'
check JsonInHeaderIsCaught caught private zero/x.h '#include <nlohmann/json.hpp>'
check HighwayInHeaderIsCaught caught private kernels/x.h '#include "hwy/highway.h"'
check HighwayInSourcePasses passes kernels/cpu/x.cc '#include "hwy/highway.h"'
check HighwayInInlPasses passes kernels/cpu/math-inl.h '#include "hwy/highway.h"'
check JsonInTestHeaderPasses passes tests/nn/x.h '#include <nlohmann/json.hpp>'
check Cli11OutsideToolsIsCaught caught cli11 models/x.cc '#include <CLI/CLI.hpp>'
check Cli11InToolsPasses passes tools/flags.h '#include <CLI/CLI.hpp>'
check NcclElsewhereIsCaught caught nccl zero/engine.cc '#include <nccl.h>'
check NcclInItsFilePasses passes zero/comm_nccl.cc '#include <nccl.h>'
check OpenMpHeaderIsCaught caught openmp kernels/cpu/x.cc '#include <omp.h>'
check OpenMpPragmaIsCaught caught openmp kernels/cpu/x.cc '#pragma omp parallel for'
check OpenMpInPoolPasses passes core/compute_pool.cc '#include <omp.h>' '#pragma omp parallel'
check HashedContainerIsCaught caught unordered zero/x.cc 'std::unordered_map<int, int> m;'
check HashedIncludeIsCaught caught unordered autograd/x.h '#include <unordered_set>'
check HashedInCommentPasses passes zero/x.cc '// no unordered_map here' 'const char* s = "unordered_map";'
check HashedInToolsPasses passes tools/x.cc 'std::unordered_map<int, int> m;'
check ExitInLibraryIsCaught caught exit nn/x.cc '  std::exit(1);'
check AbortInLibraryIsCaught caught exit core/x.cc '  abort();'
check AbortMethodPasses passes zero/engine.cc '  comm->Abort(1); comm.abort(); OnExit(2); at_exit(3);'
check ExitInToolsPasses passes tools/main.cc '  std::exit(1);'
mapfile -t long < <(seq 601)
check LongFileIsCaught caught lines core/x.cc "${long[@]/#/// }"
check LongestFilePasses passes core/x.cc "${long[@]:1}"

xml() {
  fresh
  plant core/x.cc '#include "terrace/nn/x.h"  // <&>'
  XML_OUTPUT_FILE=$work/test.xml "$root/tools/lint/layers" "$tree" >/dev/null && return 1
  contains "$(cat "$work/test.xml")" '<testcase name="arrows.core"' '<testcase name="lines"' '<failure message="core/x.cc:1: '
  [[ $(grep -c '<testcase ' "$work/test.xml") == 17 && $(grep -c '<failure ' "$work/test.xml") == 1 ]]
}
check EachRuleIsACaseOfTestXml xml

# Headers: one that lacks an include, one without a guard, then both mended.
headers() { "${unset_xml[@]}" "$root/tools/lint/headers" "$tree"; }
self_contained() {
  fresh
  plant core/a.h '#pragma once' 'inline std::string F() { return {}; }'
  plant core/b.h 'struct B {};'
  plant core/c.h '#pragma once' '#include "terrace/core/d.h"' 'inline D g;'
  plant core/d.h '#pragma once' 'struct D {};'
  local out
  out=$(headers) && return 1
  contains "$out" "core/a.h:1: " "core/b.h:1: " "4 rules or files, 2 with violations" "compiled 4" || return 1
  plant core/a.h '#pragma once' '#include <string>' 'inline std::string F() { return {}; }'
  plant core/b.h '#pragma once' 'struct B {};'
  contains "$(headers)" "compiled 2" "4 rules or files, 0 with violations" || return 1
  contains "$(headers)" "compiled 0" "0 with violations" || return 1
  plant core/d.h '#pragma once' 'struct E {};' # c.h breaks through what it includes
  out=$(headers) && return 1
  contains "$out" "compiled 2" "core/c.h:1: "
}
check HeadersCompileAlone self_contained
finish
