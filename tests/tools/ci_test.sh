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
check PartsAreSummed all_pass
check OnlyTheLastLineCounts one_count_line
check AFailedCaseFailsTheRun one_fails
check APartThatBreaksIsAFailure breaks_before_counting
check AnUnknownPartIsUsage unknown_part
finish
