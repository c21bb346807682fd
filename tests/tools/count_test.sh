#!/bin/bash
# tools/test counts what Bazel's events and test.xml files say, with a stand-in for Bazel.
source "$(dirname "$0")/cases.sh"
mkdir -p "$work/tree/tools" "$work/tree/.terrace" "$work/bin"
cp "$root/tools/test" "$work/tree/tools/"
touch "$work/tree/.terrace/setup"
cat >"$work/bin/bazel" <<'S'
#!/bin/bash
echo "$*" >"$WORK/arguments"
for arg; do [[ $arg == --build_event_json_file=* ]] && cp "$WORK/events" "${arg#*=}"; done
exit "$(cat "$WORK/code")"
S
chmod +x "$work/bin/bazel"

# counted CODE LAST_LINE ARG...: tools/test ends with that code and that line.
counted() {
  local out code=0
  echo "$1" >"$work/code"
  out=$(WORK=$work PATH=$work/bin:$PATH "$work/tree/tools/test" "${@:3}") || code=$?
  [[ $code == "$1" && $(tail -1 <<<"$out") == "$2" ]] || { echo "code $code: $out"; return 1; }
}
result() { # STATUS XML_LINE...: one test, with those lines in its test.xml
  xmls=$((${xmls-0} + 1))
  printf '%s\n' "${@:2}" >"$work/$xmls.xml"
  printf '{"id":{"testResult":{"label":"//t:%d","run":1}},"testResult":{"testActionOutput":[{"name":"test.log","uri":"file:///x"},{"name":"test.xml","uri":"file://%s"}],"status":"%s"}}\n' \
    "$xmls" "$work/$xmls.xml" "$1" >>"$work/events"
}
pass='<testcase name="a" status="run" result="completed" />'
skip='<testcase name="b" status="run" result="skipped" />'
fail=$'<testcase name="c" status="run">\n<failure message="x" type=""><![CDATA[one\n<testcase in a log\ntwo]]></failure>\n</testcase>'

: >"$work/events"
result PASSED "$pass" "$pass" "$skip"
check PassedAndSkippedCasesAreCounted counted 0 "2 passed, 0 failed, 1 skipped"
check WithoutTargetsAllAreRun grep -q '//\.\.\.$' "$work/arguments"
check FlagsAndTargetsArePassedOn counted 0 "2 passed, 0 failed, 1 skipped" --config=asan //tests/core/...
targets_kept() { grep -q -- '--config=asan //tests/core/\.\.\. *$' "$work/arguments"; }
check GivenTargetsReplaceAll targets_kept
check AFlagMayTakeItsValueAsAWord counted 0 "2 passed, 0 failed, 1 skipped" --config asan
check TheValueOfAFlagIsNoTarget grep -q -- '--config asan //\.\.\.$' "$work/arguments"
for target in //tests/core/... :all -//tests/zero/...; do
  check "GivenTarget.$target" counted 0 "2 passed, 0 failed, 1 skipped" --config asan "$target"
  check "GivenTargetAlone.$target" grep -q -- "--config asan $target *\$" "$work/arguments"
done
result FAILED "$pass" "$fail" "$pass"
check AFailedCaseIsCountedOnce counted 3 "4 passed, 1 failed, 1 skipped"
: >"$work/events"
result FAILED "$pass"
check AFailureAfterAllCasesPassedIsCounted counted 3 "1 passed, 1 failed, 0 skipped"
cat >"$work/events" <<'S'
{"id":{"targetConfigured":{"label":"//t:x"}},"configured":{"targetKind":"cc_test rule","testSize":"SMALL"}}
{"id":{"targetCompleted":{"label":"//t:x","configuration":{"id":"1"}}},"completed":{}}
S
check ATestThatDoesNotBuildIsAFailure counted 1 "0 passed, 1 failed, 0 skipped"
: >"$work/events"
check ABrokenLibraryIsAFailure counted 1 "0 passed, 1 failed, 0 skipped"
finish
