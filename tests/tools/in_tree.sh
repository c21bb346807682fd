#!/bin/bash
# Runs a script of the source tree, found through the link that Bazel makes to its WORKSPACE.
exec "$(dirname "$(readlink -f WORKSPACE)")/$1"
