"""The arrows: which folders a folder may depend on, and nothing else.

Package groups are made from this table (terrace.bzl), and tools/lint/layers reads the same lines for
its include lint, so keep one folder a line.
"""

LAYERS = {
    "core": [],
    "kernels": ["core"],
    "offload": ["core"],
    "autograd": ["core", "kernels"],
    "zero": ["core", "kernels", "autograd", "offload"],
    "nn": ["core", "autograd", "zero"],
    "models": ["core", "autograd", "zero", "nn"],
    "tools": ["core", "kernels", "autograd", "offload", "zero", "nn", "models"],
    "examples": ["core", "autograd", "zero", "nn", "models"],
    "tests": ["core", "kernels", "autograd", "offload", "zero", "nn", "models", "tools", "examples"],
}
