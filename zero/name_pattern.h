// A regular expression (ECMAScript) that is searched for in parameter names.
//
//   NamePattern pattern("attn\\..*bias$");    // throws kInvalidArgument
//   pattern.IsIn("h.0.attn.c_attn.bias");     // true
//
// Cheap to copy; may be used by several threads.
#pragma once

#include <memory>
#include <string>

namespace terrace::zero {

class NamePattern {
 public:
  explicit NamePattern(const std::string& text);
  bool IsIn(const std::string& name) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace terrace::zero
