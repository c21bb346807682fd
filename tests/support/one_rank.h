// One rank with a store and an engine, for tests of modules and models.
//
//   RunOneRank([](zero::Runtime& rt) {
//     const nn::Linear layer(nn::Scope(rt.store()), "fc", 3, 2);
//     zero::Engine engine(rt);
//     ...
//   });
//
// What the function throws fails the test with its message. ASSERT_* ends the
// function alone.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/zero/engine.h"
#include "terrace/zero/runtime.h"

namespace terrace::testing {

inline void RunOneRank(const zero::RankFunction& fn,
                       zero::LaunchOptions options = {}) {
  options.threads = 1;
  zero::FirstFailure failure;
  EXPECT_EQ(zero::Launch(options, fn, &failure), 0) << failure.message;
}

// In f64, where formulas hold to 1e-12.
inline void RunOneRankF64(const zero::RankFunction& fn,
                          zero::LaunchOptions options = {}) {
  options.f64 = true;
  RunOneRank(fn, std::move(options));
}

// One value a name: every parameter that matches, row-major.
using NamedValues = std::map<std::string, std::vector<double>>;

inline NamedValues ReadValues(zero::ParameterStore& store,
                              std::string_view pattern = "*",
                              zero::StateKind kind = zero::StateKind::kWeight) {
  NamedValues values;
  store.Read(kind, pattern, [&](const zero::NamedTensor& tensor) {
    std::vector<double>& out = values[std::string(tensor.name)];
    VisitFloat(tensor.dtype, "read", [&]<class T>(Tag<T>) {
      const T* data = tensor.values.data<T>();
      for (int64_t i = 0; i < tensor.values.numel(); ++i)
        out.push_back(
            static_cast<double>(static_cast<Accumulator<T>>(data[i])));
    });
  });
  return values;
}

inline void WriteValues(zero::ParameterStore& store, std::string_view name,
                        const std::vector<double>& values) {
  store.Edit(name, [&](zero::NamedTensor& tensor) {
    ASSERT_EQ(tensor.values.numel(), std::ssize(values)) << name;
    VisitFloat(tensor.dtype, "write", [&]<class T>(Tag<T>) {
      for (int64_t i = 0; i < tensor.values.numel(); ++i)
        tensor.values.data<T>()[i] = static_cast<T>(
            static_cast<Accumulator<T>>(values[static_cast<size_t>(i)]));
    });
  });
}

}  // namespace terrace::testing
