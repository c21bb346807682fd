# Sourced by the lints: violations, one a line as "file:line: [rule] why", become cases.
# shellcheck shell=bash
violations=$(mktemp)
cases=$(mktemp)
trap 'rm -f "$violations" "$cases"' EXIT
failures=0
count=0

xml_text() { sed -e 's/&/\&amp;/g' -e 's/</\&lt;/g' -e 's/>/\&gt;/g' -e 's/"/\&quot;/g'; }

# report_case RULE: a case that fails when a violation names the rule.
report_case() {
  local found
  found=$(grep -F ": [$1] " "$violations" || true)
  count=$((count + 1))
  if [[ -z $found ]]; then
    echo "    <testcase name=\"$(xml_text <<<"$1")\" status=\"run\" result=\"completed\" />" >>"$cases"
    return
  fi
  failures=$((failures + 1))
  {
    echo "    <testcase name=\"$(xml_text <<<"$1")\" status=\"run\" result=\"completed\">"
    echo "      <failure message=\"$(xml_text <<<"$found" | tr '\n' ' ')\"></failure>"
    echo "    </testcase>"
  } >>"$cases"
}

# report_end NAME: prints the violations, writes test.xml where Bazel wants it, sets the exit code.
report_end() {
  cat "$violations"
  if [[ ${XML_OUTPUT_FILE-} ]]; then
    {
      echo '<?xml version="1.0" encoding="UTF-8"?>'
      echo "<testsuites tests=\"$count\" failures=\"$failures\">"
      echo "  <testsuite name=\"$1\" tests=\"$count\" failures=\"$failures\">"
      cat "$cases"
      echo "  </testsuite>"
      echo "</testsuites>"
    } >"$XML_OUTPUT_FILE"
  fi
  echo "$1: $count rules or files, $failures with violations"
  [[ $failures == 0 ]]
}
