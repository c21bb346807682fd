#include "terrace/zero/name_pattern.h"

#include <regex>

#include "terrace/core/error.h"

namespace terrace::zero {

struct NamePattern::Impl {
  std::regex regex;
};

NamePattern::NamePattern(const std::string& text) {
  try {
    impl_ = std::make_shared<const Impl>(Impl{std::regex(text)});
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
