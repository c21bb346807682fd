#include "terrace/zero/name_pattern.h"

#include <locale>
#include <memory>
#include <regex>

#include "terrace/core/error.h"

namespace terrace::zero {

struct NamePattern::Impl {
  std::regex regex;
};

NamePattern::NamePattern(const std::string& text) {
  try {
    const auto impl = std::make_shared<Impl>();
    // libstdc++ fills a cache of the facet while it compiles a pattern,
    // unlocked: ranks, which compile theirs at the same time, must not share
    // one.
    impl->regex.imbue(
        std::locale(std::locale::classic(), new std::ctype<char>()));
    impl->regex.assign(text);
    impl_ = impl;
  } catch (const std::regex_error& error) {
    TERRACE_THROW(ErrorCode::kInvalidArgument,
                  "[pattern] must be a regular expression, got '", text,
                  "': ", error.what());
  }
}

bool NamePattern::IsIn(const std::string& name) const {
  return std::regex_search(name, impl_->regex);
}

}  // namespace terrace::zero
