"""Every external repository. Nothing here downloads: all of it comes from Debian packages."""

load(":system.bzl", "cuda_repository", "files_repository", "system_library")

# Debian's rules_cc is newer than 4.2.3 can read, and @bazel_tools asks for it by name.
_RULES_CC = "".join(["%s = native.%s\n" % (r, r) for r in [
    "cc_binary", "cc_import", "cc_library", "cc_proto_library", "cc_test", "cc_toolchain",
    "cc_toolchain_suite", "fdo_prefetch_hints", "fdo_profile", "objc_library",
]])

# `bazel test` resolves these two labels even when nobody asks for coverage.
_COVERAGE = "".join(['filegroup(name = "%s", visibility = ["//visibility:public"])\n' % name
                     for name in ["coverage_report_generator", "lcov_merger"]])

_GTEST = """
load("@rules_cc//cc:defs.bzl", "cc_library")
cc_library(
    name = "gtest_main",
    srcs = ["googletest/src/gtest-all.cc", "googlemock/src/gmock-all.cc", "googletest/src/gtest_main.cc"],
    hdrs = glob(["google*/include/**/*.h"]),
    textual_hdrs = glob(["google*/src/*"]),  # the -all files include them: half the time of one by one
    copts = ["-w", "-Iexternal/gtest/googletest", "-Iexternal/gtest/googlemock"],
    includes = ["googletest/include", "googlemock/include"],
    linkopts = ["-pthread"],
    visibility = ["//visibility:public"],
)
"""

_DISABLED_HWY_TARGETS = "(HWY_SSSE3|HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128)"

def terrace_dependencies():
    """To be called from WORKSPACE, also by another workspace that uses @terrace."""
    have = native.existing_rules()
    for repo, path in {"rules_java": "rules/java", "rules_proto": "rules/proto", "platforms": "tools/platforms", "bazel_skylib": "tools/skylib"}.items():
        if repo not in have:
            native.local_repository(name = repo, path = "/usr/share/bazel/" + path)
    if "rules_cc" not in have:
        files_repository(name = "rules_cc", files = {"BUILD": "", "cc/BUILD": "", "cc/defs.bzl": _RULES_CC})
    if "remote_coverage_tools" not in have:
        files_repository(name = "remote_coverage_tools", files = {"BUILD": _COVERAGE})
    if "gtest" not in have:
        native.new_local_repository(name = "gtest", path = "/usr/src/googletest", build_file_content = _GTEST)

    # Prefixed: a workspace that uses us may have an @eigen or @cuda of its own.
    system_library(name = "terrace_eigen", header = "Eigen/Core", pkg_config = "eigen3", debian = "libeigen3-dev", required = True)
    system_library(name = "terrace_json", header = "nlohmann/json.hpp", pkg_config = "nlohmann_json", debian = "nlohmann-json3-dev", required = True)

    # Each kernel is compiled for each instruction set that is not disabled: SSSE3 alone is of before 2008, and SVE's vectors, whose
    # length is not known when compiling, cannot be kept in arrays, as our tiles are (arm64 runs NEON's).
    system_library(name = "terrace_hwy", header = "hwy/highway.h", pkg_config = "libhwy", defines = ["HWY_DISABLED_TARGETS=" + _DISABLED_HWY_TARGETS], debian = "libhwy-dev", required = True)

    # Probed by their lightest headers: a probe runs again whenever a Bazel server starts.
    system_library(name = "terrace_cli11", header = "CLI/Version.hpp", debian = "libcli11-dev", required = True)
    system_library(name = "terrace_dnnl", header = "oneapi/dnnl/dnnl.hpp", libs = ["dnnl"], debian = "libdnnl-dev")
    system_library(name = "terrace_uring", header = "liburing.h", pkg_config = "liburing", debian = "liburing-dev")

    # Without the define mpi.h pulls in the removed C++ interface, which does not link.
    system_library(name = "terrace_mpi", header = "mpi.h", pkg_config = "ompi", defines = ["OMPI_SKIP_MPICXX"], debian = "libopenmpi-dev")
    cuda_repository(name = "terrace_cuda")
