#!/bin/bash
# tools/terrace in a small tree, with stand-ins for Bazel and tools/setup that keep a log.
source "$(dirname "$0")/cases.sh"
tree=$work/tree
log=$work/log
unset OMPI_COMM_WORLD_SIZE PMI_SIZE OMP_WAIT_POLICY TERRACE_CONFIG

fresh() {
  rm -rf "$tree" "$work/bin"
  mkdir -p "$tree"/{core,tools,tests} "$work/bin" "$work/elsewhere"
  cp "$root/tools/terrace" "$tree/tools/"
  touch -d '1 hour ago' "$tree"/{WORKSPACE,BUILD,.bazelrc} "$tree"/core/{x.h,BUILD} "$tree"/{core,tools}
  cat >"$tree/tools/setup" <<'S'
#!/bin/bash
echo setup >>"$LOG"
mkdir -p "$(dirname "$0")/../.terrace" && touch "$(dirname "$0")/../.terrace/setup"
S
  # Builds a binary that says where and how it runs.
  cat >"$work/bin/bazel" <<'S'
#!/bin/bash
echo "bazel $*" >>"$LOG"
[[ ! ${FAIL-} ]] || exit 1
folder=bazel-out/k8-opt/bin/tools
[[ $* == *--config=cuda* ]] && folder=bazel-out/k8-opt-cuda/bin/tools
mkdir -p "$folder"
printf '#!/bin/bash\necho "$PWD|$OMP_WAIT_POLICY|$*"\nexit 7\n' >"$folder/terrace"
chmod +x "$folder/terrace"
S
  chmod +x "$tree/tools/setup" "$work/bin/bazel"
}
# run [VAR=VALUE...] -- ARG...: from another folder; sets out, code and the new lines of the log.
run() {
  local settings=()
  while [[ $1 != -- ]]; do settings+=("$1") && shift; done
  shift
  : >"$log"
  code=0
  out=$(cd "$work/elsewhere" && env LOG="$log" PATH="$work/bin:$PATH" "${settings[@]}" "$tree/tools/terrace" "$@" 2>"$work/err") || code=$?
}
logged() { [[ $(cat "$log") == "$1" ]] || { echo "logged: $(cat "$log")"; return 1; }; }
build="bazel build --ui_event_filters=-info --show_result=0 --noshow_progress //tools:terrace"

first_run() {
  fresh
  run -- train --steps "2 3"
  logged $'setup\n'"$build" && [[ $code == 7 && $out == "$work/elsewhere|passive|train --steps 2 3" ]]
}
fresh_binary() {
  run -- --help
  logged "" && [[ $code == 7 ]]
}
newer_source() {
  touch -d '1 minute' "$tree/core/x.h"
  run -- --help
  logged "$build"
  local ok=$?
  touch -d '1 hour ago' "$tree/core/x.h"
  return $ok
}
new_file() {
  touch -d '1 hour ago' "$tree/core/y.cc" # an old file that was moved here
  sleep 0.01
  run -- --help
  logged "$build" && run -- --help && logged ""
}
other_files() {
  touch -d '1 minute' "$tree/tests/x.cc" "$tree/README.md"
  run -- --help
  logged ""
}
under_mpirun() {
  touch -d '1 minute' "$tree/core/x.h"
  run OMPI_COMM_WORLD_SIZE=2 -- --help
  logged "" && [[ $code == 7 ]] || return 1
  run PMI_SIZE=2 -- --help
  logged "" && [[ $code == 7 ]]
}
under_mpirun_unbuilt() {
  fresh
  run OMPI_COMM_WORLD_SIZE=2 -- --help
  logged "" && [[ $code == 1 && $(wc -l <"$work/err") == 1 ]] && contains "$(cat "$work/err")" "[terrace] nothing is built"
}
failed_build() {
  fresh
  run FAIL=1 -- train
  [[ $code == 1 && -z $out ]] || return 1
  contains "$(cat "$work/err")" "the build failed" || return 1
  run -- train # a failed build leaves no stamp
  logged "$build" && [[ $code == 7 ]]
}
wait_policy() {
  run OMP_WAIT_POLICY=active -- x
  [[ $out == *"|active|x" ]]
}
other_config() {
  run TERRACE_CONFIG=cuda -- x
  logged "${build/build /build --config=cuda }" && run TERRACE_CONFIG=cuda -- x && logged "" && run -- x && logged ""
}
through_a_symlink() {
  mkdir -p "$work/links" && ln -sfn "$tree/tools/terrace" "$work/links/absolute"
  ln -sfn absolute "$work/links/relative" # a link to a link
  local link
  for link in absolute relative; do
    code=0
    out=$(cd "$work/elsewhere" && env LOG="$log" PATH="$work/bin:$PATH" "$work/links/$link" a b) || code=$?
    [[ $code == 7 && $out == "$work/elsewhere|passive|a b" ]] || return 1
  done
}
check FirstRunInstallsBuildsAndKeepsFolderAndArguments first_run
check AFreshBinaryStartsNoBazel fresh_binary
check ANewerSourceIsBuilt newer_source
check AnAddedFileIsBuilt new_file
check TestsAndPagesAreNotSources other_files
check UnderMpirunNothingIsBuilt under_mpirun
check UnderMpirunUnbuiltIsOneLine under_mpirun_unbuilt
check AFailedBuildRunsNothing failed_build
check TheCallersWaitPolicyWins wait_policy
check ALinkFindsTheTree through_a_symlink
check AnotherConfigurationHasItsOwnBinary other_config
finish
