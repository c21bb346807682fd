#!/bin/bash
# .ci/run sums the parts, in a small tree whose tools/test is a stand-in.
source "$(dirname "$0")/cases.sh"
tree=$work/tree
mkdir -p "$tree/.ci" "$tree/tools/lint" "$tree/tests/core"
cp "$root/.ci/run" "$tree/.ci/"
touch "$tree/tests/core/BUILD"
printf '#!/bin/bash\nexit 0\n' >"$tree/tools/setup"
printf '#!/bin/bash\necho lines\n' >"$tree/tools/lint/size"
cat >"$tree/tools/test" <<'S'
#!/bin/bash
echo "{\"id\":{\"testResult\":{\"label\":\"//t:slow\"}},\"testResult\":{\"testAttemptDurationMillis\":\"1500\"}}" >"$TERRACE_TEST_EVENTS"
echo "some output"
case $* in
  *minimal*) echo "5 passed, ${MINIMAL_FAILED-0} failed, 2 skipped"; exit "${MINIMAL_FAILED-0}" ;;
  *asan*) [[ ${BROKEN-} ]] && exit 9; echo "3 passed, 0 failed, 0 skipped" ;;
  *) echo "10 passed, 0 failed, 1 skipped" ;;
esac
S
chmod +x "$tree"/tools/{setup,test,lint/size}
run() {
  code=0
  out=$("$@" "$tree/.ci/run" setup opt minimal asan 2>&1) || code=$?
}
last() { [[ $(tail -1 <<<"$out") == "$1" ]] || { echo "$out"; return 1; }; }

all_pass() {
  run env
  [[ $code == 0 ]] && last "19 passed, 0 failed, 3 skipped" &&
    contains "$out" "some output" "minimal: passed=5 failed=0 skipped=2 seconds=" "1.5  opt      //t:slow"
}
one_count_line() { [[ $(grep -cE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped' <<<"$out") == 1 ]]; }
one_fails() {
  run env MINIMAL_FAILED=1
  [[ $code == 1 ]] && last "19 passed, 1 failed, 3 skipped"
}
breaks_before_counting() {
  run env BROKEN=1
  [[ $code == 1 ]] && last "16 passed, 1 failed, 3 skipped"
}
unknown_part() {
  code=0
  out=$("$tree/.ci/run" optt 2>&1) || code=$?
  [[ $code == 2 ]] && contains "$out" "optt" "minimal"
}
# part NAME: runs it with the stand-ins in $work/bin.
mkdir -p "$work/bin" "$tree/tools/build" "$tree/examples/external"
part() {
  code=0
  out=$(PATH=$work/bin:$PATH "$tree/.ci/run" "$1" 2>&1) || code=$?
}
printf '#!/bin/bash\nprintf "formatted %%s\\n" "$@"\n' >"$work/bin/clang-format-14"
printf '#!/bin/bash\n[[ $1 == shutdown ]] || echo "${APP_PRINTS-124439808}"\nexit "${APP_CODE-0}"\n' >"$work/bin/bazel"
chmod +x "$work"/bin/*
format_without_sources() {
  part format
  [[ $code == 1 ]] && last "0 passed, 1 failed, 0 skipped" && contains "$out" "no source" || return 1
  printf '    "core": [],\n' >"$tree/tools/build/layers.bzl"
  part format
  [[ $code == 1 ]] && last "0 passed, 1 failed, 0 skipped" && contains "$out" "no source"
}
format_without_git() {
  printf '    "core": [],\n' >"$tree/tools/build/layers.bzl"
  mkdir -p "$tree/core/bazel-out"
  touch "$tree/core/a b.cc" "$tree/core/c.h" "$tree/core/bazel-out/d.cc"
  part format
  [[ $code == 0 && $out != *d.cc* ]] && last "1 passed, 0 failed, 0 skipped" &&
    contains "$out" "formatted core/a b.cc" "formatted core/c.h"
}
external() {
  part external
  [[ $code == 0 ]] && last "1 passed, 0 failed, 0 skipped"
}
external_wrong() {
  APP_PRINTS=7 part external
  [[ $code == 1 ]] && last "0 passed, 1 failed, 0 skipped" && contains "$out" "printed: 7" || return 1
  APP_CODE=1 part external
  [[ $code == 1 ]] && last "0 passed, 1 failed, 0 skipped"
}
check FormatFailsOnNothing format_without_sources
check FormatNeedsNoGit format_without_git
check TheExternalWorkspaceIsACase external
check AWrongExternalAnswerFails external_wrong
check PartsAreSummed all_pass
check OnlyTheLastLineCounts one_count_line
check AFailedCaseFailsTheRun one_fails
check APartThatBreaksIsAFailure breaks_before_counting
check AnUnknownPartIsUsage unknown_part
finish
