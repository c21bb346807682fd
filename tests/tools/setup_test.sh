#!/bin/bash
# tools/setup with stand-ins for dpkg-query, apt-get and id.
source "$(dirname "$0")/cases.sh"
mkdir -p "$work/tree/tools" "$work/bin"
cp "$root/tools/setup" "$work/tree/tools/"
stub() { printf '#!/bin/bash\n%s\n' "$2" >"$work/bin/$1" && chmod +x "$work/bin/$1"; }
# dpkg-query: every package is there but those in $GONE and not (yet) in $work/installed.
stub dpkg-query 'shift 2
for p; do [[ " $GONE " == *" $p "* ]] && ! grep -qxF "$p" "$WORK/installed" 2>/dev/null || echo "installed $p"; done'
# apt-get: installs all but $UNKNOWN, which makes the whole call fail.
stub apt-get 'echo "apt-get $*" >>"$WORK/apt.log"
[[ $1 == install ]] || exit 0
for p; do [[ " $UNKNOWN " == *" $p "* ]] && exit 100; done
printf "%s\n" "$@" >>"$WORK/installed"'
stub id 'echo "${FAKE_UID:-0}"'
run() {
  rm -rf "$work/installed" "$work/apt.log" "$work/tree/.terrace"
  touch "$work/apt.log"
  code=0
  out=$(WORK=$work PATH=$work/bin:$PATH "$work/tree/tools/setup" "$@" 2>&1) || code=$?
}
export GONE="" UNKNOWN="" FAKE_UID=0

nothing_missing() {
  run
  [[ $code == 0 && -z $out && ! -s $work/apt.log && -e $work/tree/.terrace/setup ]]
}
installs_only_missing() {
  GONE="libhwy-dev libdnnl-dev" run
  [[ $code == 0 ]] && contains "$out" "installing by apt-get: libhwy-dev libdnnl-dev" &&
    grep -qx "apt-get install -y --no-install-recommends libhwy-dev" "$work/apt.log" &&
    grep -qx "apt-get install -y --no-install-recommends libdnnl-dev" "$work/apt.log"
}
without_root() {
  GONE="g++ fortunes" FAKE_UID=1000 run
  [[ $code == 1 && $(wc -l <<<"$out") == 1 && ! -s $work/apt.log && ! -e $work/tree/.terrace/setup ]] &&
    contains "$out" "needs root" "apt-get install -y --no-install-recommends g++ fortunes"
}
without_root_optional() {
  GONE="libdnnl-dev" FAKE_UID=1000 run
  [[ $code == 0 && -e $work/tree/.terrace/setup ]] && contains "$out" "without libdnnl-dev: matrix products"
}
optional_unavailable() {
  GONE="libdnnl-dev fortunes" UNKNOWN=libdnnl-dev run
  [[ $code == 0 ]] && contains "$out" "without libdnnl-dev: " && [[ $out != *"without fortunes:"* ]] &&
    grep -qx fortunes "$work/installed"
}
required_unavailable() {
  GONE="libhwy-dev" UNKNOWN=libhwy-dev run
  [[ $code == 1 && ! -e $work/tree/.terrace/setup ]] && contains "$out" "could not install what is required"
}
only_check() {
  GONE="g++ fortunes" run --check
  [[ $code == 1 && ! -s $work/apt.log ]] && contains "$out" "missing: g++" "missing, optional: fortunes (" || return 1
  GONE="fortunes" run --check
  [[ $code == 0 ]] || return 1
  run --check
  [[ $code == 0 && $out == "nothing is missing" ]]
}
wrong_argument() {
  run --chekc
  [[ $code == 2 && $(wc -l <<<"$out") == 1 ]] && contains "$out" "--chekc" "--check"
}
check NothingMissingIsSilent nothing_missing
check InstallsOnlyWhatIsMissing installs_only_missing
check WithoutRootPrintsTheCommandAndStops without_root
check WithoutRootAnOptionalPackageIsANotice without_root_optional
check AnUnavailableOptionalPackageIsANotice optional_unavailable
check AnUnavailableRequiredPackageFails required_unavailable
check CheckChangesNothing only_check
check AWrongArgumentIsUsage wrong_argument
finish
