"""Rules for Terrace's own code: flags, include paths and layer arrows in one place.

    terrace_library(name = "error", srcs = ["error.cc"], hdrs = ["error.h"])
    terrace_kernel(name = "layer_norm", deps = [":dispatch", "//core:tensor"])
    terrace_test(name = "error_test", deps = ["//core:error"])

A target is visible to the folders that layers.bzl allows; `public = True` opens it to all, other
workspaces included. Headers are included as "terrace/<package>/<header>" everywhere.
"""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")
load(":cuda_library.bzl", "cuda_library")
load(":layers.bzl", "LAYERS")

# For loops over plain C++ arithmetic. Optimised builds alone: under a sanitizer it takes three times
# as long to compile, and an unoptimised build is to stay one.
VECTORIZE = select({
    str(Label("//tools/build:optimised")): ["-O3"],
    "//conditions:default": [],
})

def layer_groups():
    """Declares <folder>_users for each folder: itself and all whose arrow ends there."""
    for folder in LAYERS:
        # Examples are written as by a user, so they see public targets alone.
        users = [user for user, may in LAYERS.items() if user == folder or (folder in may and user != "examples")]
        native.package_group(name = folder + "_users", packages = ["//%s/..." % user for user in users])

def _visibility(public):
    group = "//tools/build:%s_users" % native.package_name().split("/")[0]
    return ["//visibility:public"] if public else [str(Label(group))]

def _copts(copts):
    # gcc contracts a * b + c to an FMA by default, even across intrinsics: bits would depend
    # on the instruction set. Warnings are errors at home only: another workspace may compile
    # us with another compiler.
    home = native.repository_name() == "@"
    return ["-std=c++20", "-ffp-contract=off"] + (["-Wall", "-Wextra", "-Werror"] if home else []) + copts

def _library(name, public, srcs = [], copts = [], **kwargs):
    cc_library(
        name = name,
        srcs = srcs,
        copts = _copts(copts),
        include_prefix = "terrace/" + native.package_name(),
        linkstatic = True,  # no lib<name>.so beside the archive
        visibility = _visibility(public),
        **kwargs
    )

def terrace_library(name, srcs = [], public = False, **kwargs):
    """A library whose headers are included as "terrace/<package>/<header>"."""
    if [src for src in srcs if src.endswith(".h")]:
        fail("headers go into hdrs: those in srcs get no terrace/ prefix")
    _library(name = name, srcs = srcs, public = public, **kwargs)

def terrace_cuda_library(name, srcs, hdrs, deps = []):
    """CUDA sources behind ordinary headers; the headers alone without --config=cuda."""
    terrace_library(name = name + "_hdrs", hdrs = hdrs, deps = deps)
    cuda_library(name = name, srcs = srcs, deps = [":%s_hdrs" % name], visibility = _visibility(False))

def terrace_kernel(name, deps = [], cuda_deps = [], **kwargs):
    """One op: <name>.{h,cc} and cpu/<name>.cc, with cuda/<name>.cu under --config=cuda.

    cpu/<name>.h, cpu/<name>_*-inl.h, cuda/<name>.h and cuda/<name>.cuh belong to it where they exist. With
    TERRACE_WITH_CUDA=1 the dispatcher may call cuda::; an op without a .cu never sees it.

    Args:
      name: the op, base name of all its files.
      deps: what the headers and both implementations need.
      cuda_deps: what the CUDA side needs besides (@terrace_cuda//:cublasLt, :launch, ...).
      **kwargs: goes to the cc_library (copts, linkopts, testonly, ...).
    """
    hdrs = [name + ".h"] + native.glob([folder + name + suffix for folder, suffix in [
        ("cpu/", ".h"),
        ("cpu/", "_*-inl.h"),
        ("cuda/", ".h"),
        ("cuda/", ".cuh"),
    ]])
    cuda_srcs = native.glob(["cuda/%s.cu" % name])
    cuda = str(Label("//tools/build:cuda"))
    terrace_library(name = name + "_hdrs", hdrs = hdrs, deps = deps)
    if cuda_srcs:
        cuda_library(
            name = name + "_cuda",
            srcs = cuda_srcs,
            deps = [":%s_hdrs" % name] + cuda_deps,
            visibility = _visibility(False),
        )
    cpu_srcs = native.glob(["cpu/%s.cc" % name])
    _library(
        name = name,
        srcs = [name + ".cc"] + cpu_srcs,
        # Highway's foreach_target.h includes cpu/<name>.cc again, by its terrace/ name.
        hdrs = hdrs + cpu_srcs,
        public = False,
        deps = deps + [":%s_hdrs" % name] + select({
            cuda: [":%s_cuda" % name] if cuda_srcs else [],
            "//conditions:default": [],
        }),
        local_defines = select({
            cuda: ["TERRACE_WITH_CUDA=1"] if cuda_srcs else [],
            "//conditions:default": [],
        }),
        **kwargs
    )

def terrace_binary(name, copts = [], **kwargs):
    cc_binary(name = name, copts = _copts(copts), visibility = _visibility(False), **kwargs)

def terrace_test(name, srcs = None, deps = [], size = "small", copts = [], **kwargs):
    """A GoogleTest binary; srcs defaults to <name>.cc."""
    cc_test(
        name = name,
        size = size,
        srcs = srcs or [name + ".cc"],
        copts = _copts(copts),
        deps = deps + ["@gtest//:gtest_main"],
        **kwargs
    )

def terrace_tree_test(name, script, timeout = "short"):
    """A script that is run in the source tree itself, which Bazel does not track: so each time."""
    native.sh_test(
        name = name,
        size = "small",
        timeout = timeout,
        srcs = ["in_tree.sh"],
        args = [script],
        data = ["//:WORKSPACE"],  # the way to the tree
        tags = ["external", "local", "no-cache"],
    )
