// Terrace from another workspace: cd examples/external && bazel run //:app
#include <cstdio>

#include "terrace/models/gpt2.h"
#include "terrace/zero/engine.h"

int main(int argc, char** argv) {
  return terrace::zero::Launch(argc, argv, [](terrace::zero::Runtime& rt) {
    const auto config = terrace::models::Gpt2Config::Named("gpt2");
    const terrace::models::Gpt2 model(terrace::nn::Scope(rt.store()), config);
    std::printf("%lld\n", static_cast<long long>(rt.store().ParameterCount()));
  });
}
