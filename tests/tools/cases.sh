# Sourced by shell tests: named cases for test.xml.
#   check NAME COMMAND [ARG...]     a case that passes when the command succeeds
#   contains TEXT PART...           succeeds when each part stands in the text
#   finish                          writes test.xml and exits
# shellcheck shell=bash
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d -p "${TEST_TMPDIR:-/tmp}")
trap 'rm -rf "$work"' EXIT
failed=0
lines=()

check() {
  local name=$1
  shift
  if "$@"; then
    lines+=("<testcase name=\"$name\" status=\"run\" result=\"completed\" />")
    echo "ok      $name"
  else
    failed=$((failed + 1))
    lines+=("<testcase name=\"$name\" status=\"run\" result=\"completed\"><failure message=\"$name\"></failure></testcase>")
    echo "FAILED  $name"
  fi
}

contains() {
  local text=$1 part
  shift
  for part; do
    [[ $text == *"$part"* ]] || { printf 'no "%s" in:\n%s\n' "$part" "$text"; return 1; }
  done
}

finish() {
  if [[ ${XML_OUTPUT_FILE-} ]]; then
    {
      echo "<testsuites tests=\"${#lines[@]}\" failures=\"$failed\"><testsuite name=\"$(basename "$0")\">"
      printf '%s\n' "${lines[@]}"
      echo "</testsuite></testsuites>"
    } >"$XML_OUTPUT_FILE"
  fi
  [[ $failed == 0 ]]
  exit
}
